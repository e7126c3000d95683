// Images come in by dropping, pasting and choosing, go to the server in groups, and come back as results.
import { predict } from "/assets/api.js";
import { csv, save } from "/assets/csv.js";
import { alertWith, byId, make, plural } from "/assets/dom.js";
import { drawn } from "/assets/results.js";

const GROUP = 8; // images of one request: results appear as they come
const AT_ONCE = 2; // requests
const ROOM = 10000; // bytes of the form around images
let state = { models: [], limits: null, notice: "" };
let items = [];
let running = null; // what is under way can be given up

const chosen = () => ({ model: byId("model").value, compare: byId("compare").value });
const nameOf = (said) => {
  const model = state.models.find((one) => one.id === said.model);
  return model ? `${model.name} (${said.digest.slice(0, 8)})` : said.model;
};

export function show(told) {
  const before = chosen();
  state = told;
  const options = told.models.map((one) => [one.id, `${one.name} (${one.digest.slice(0, 8)})`]);
  fill("model", options, before.model);
  fill("compare", [["", "none"], ...options], before.compare);
  byId("compare-label").hidden = told.models.length < 2;
  const size = `${Math.round(told.limits.upload_bytes / 1e6)} MB`;
  byId("allowed").textContent = `BMP, JPEG, PNG, TIFF or WebP, up to ${size} each. Nothing is kept.`;
}

function fill(id, options, before) {
  byId(id).replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  if (options.some(([value]) => value === before)) byId(id).value = before;
}

function add(files) {
  const found = Array.from(files);
  if (!found.length) return;
  alertWith("");
  const added = found.map((file) => ({ file, address: URL.createObjectURL(file), answers: null, problem: refusal(file) }));
  stop(false);
  items = [...items, ...added];
  added.forEach((item) => {
    item.element = drawn(item, nameOf);
    byId("results").append(item.element);
  });
  work();
}

function refusal(file) {
  const most = state.limits.upload_bytes - ROOM;
  if (file.size > most) return `Larger than ${(most / 1e6).toFixed(1)} MB; this server takes no more.`;
  return file.size ? null : "The file is empty.";
}

function redraw(item) {
  const fresh = drawn(item, nameOf);
  item.element.replaceWith(fresh);
  item.element = fresh;
}

function tell(busy) {
  const done = items.filter((item) => item.answers || item.problem).length;
  const unlike = items.filter((item) => (item.answers || []).some((said) => said.unlike)).length;
  const problems = items.filter((item) => item.problem).length;
  byId("bar").hidden = !items.length;
  byId("images").classList.toggle("has-results", items.length > 0);
  byId("save").disabled = done === 0;
  byId("progress").hidden = done === items.length;
  byId("progress").value = items.length ? done / items.length : 0;
  const facts = [`${plural(done - problems, "image")} answered`, unlike ? `${unlike} unlike anything learned` : "",
    problems ? plural(problems, "problem") : ""].filter(Boolean).join(", ");
  const way = done < items.length ? `${done} of ${plural(items.length, "image")}` : facts;
  byId("status").textContent = busy ? `${way}. The server is busy; trying again …` : way;
}

// The next images that one request may bring.
function taken() {
  const group = [];
  let bytes = 0;
  for (const item of items) {
    if (item.answers || item.problem || item.asked) continue;
    bytes += item.file.size;
    const full = group.length >= Math.min(GROUP, state.limits.images);
    if (full || (group.length && bytes > state.limits.upload_bytes - ROOM)) break;
    item.asked = true;
    group.push(item);
  }
  return group;
}

async function worker(mine) {
  const { model, compare } = chosen();
  for (let group = taken(); group.length; group = taken()) {
    const said = await predict(group.map((item) => item.file), model, compare, mine.signal, () => tell(true));
    if (mine.signal.aborted) return; // given up at the last moment: others ask about these images now
    said.images.forEach((image, i) => {
      group[i].answers = image.problem ? null : image.answers;
      group[i].problem = image.problem ? image.problem.message : null;
      redraw(group[i]);
    });
    tell(false);
  }
}

function work() {
  tell(false);
  const mine = running;
  const failed = (error) => {
    if (mine.signal.aborted) return;
    begin();
    stop(true);
    if (error.status === 401) document.dispatchEvent(new Event("signed-out"));
    else alertWith(error.message, again);
  };
  while (mine.workers < AT_ONCE && items.some((item) => !item.answers && !item.problem && !item.asked)) {
    mine.workers += 1;
    worker(mine).catch(failed).finally(() => { mine.workers -= 1; });
  }
}

// What is under way is given up; nothing has been asked.
function begin() {
  if (running) running.abort();
  running = new AbortController();
  running.workers = 0;
  items.forEach((item) => { item.asked = false; });
}

function stop(stopped) {
  items.filter((item) => !item.answers && !item.problem).forEach((item) => {
    item.stopped = stopped;
    redraw(item);
  });
}

function again() {
  alertWith("");
  stop(false);
  work();
}

// Other models are asked about the same images.
function askAgain() {
  begin();
  alertWith("");
  items.forEach((item) => {
    item.answers = null;
    item.problem = refusal(item.file);
    item.stopped = false;
    redraw(item);
  });
  if (items.length) work();
}

function clear() {
  items.forEach((item) => URL.revokeObjectURL(item.address));
  items = [];
  begin();
  byId("results").replaceChildren();
  alertWith("");
  tell(false);
  byId("choose").focus();
}

export function start() {
  const drop = byId("drop");
  begin();
  byId("choose").addEventListener("click", () => byId("files").click());
  byId("files").addEventListener("change", (event) => { add(event.target.files); event.target.value = ""; });
  byId("clear").addEventListener("click", clear);
  byId("save").addEventListener("click", () => save(csv(items, nameOf, state.notice), "endocil-predictions.csv"));
  byId("model").addEventListener("change", askAgain);
  byId("compare").addEventListener("change", askAgain);
  const here = () => !byId("images").hidden && state.limits;
  document.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.toggle("over", Boolean(here())); });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) drop.classList.remove("over"); });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (here()) add(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => { if (here()) add(event.clipboardData.files); });
}

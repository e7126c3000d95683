// Images come in by dropping, pasting and choosing, go to the server in groups, and come back as results.
import { predict } from "/assets/api.js";
import { csv, save } from "/assets/csv.js";
import { alertWith, byId, make, plural, sentence } from "/assets/dom.js";
import { listen, read } from "/assets/files.js";
import { drawn } from "/assets/results.js";
import { tellOf } from "/assets/status.js";

const GROUP = 8; // images of one request: results appear as they come
const AT_ONCE = 2; // requests
const ROOM = 10000; // bytes of the form around images
const MOST = 1000; // images on the page
const UNREADABLE = "Cannot be read: it has changed since it was chosen, or is no file. Choose it again.";
let state = { models: [], limits: null, notice: "" };
let items = [];
let note = ""; // why all was asked again
let running = null; // what is under way can be given up

const chosen = () => ({ model: byId("model").value, compare: byId("compare").value });
const names = new Map(); // by digest: an answer keeps the name of the bundle that gave it
const nameOf = (said) => `${names.get(said.digest) || said.model} (${said.digest.slice(0, 8)})`;
const tell = (busy) => tellOf(items, note, busy);
const serving = (id) => (state.models.find((one) => one.id === id) || {}).digest;
const digests = () => Object.values(chosen()).filter(Boolean).map(serving).join();

export function show(told) {
  const before = chosen();
  const answering = digests();
  state = told;
  told.models.forEach((one) => names.set(one.digest, one.name));
  const options = told.models.map((one) => [one.id, `${one.name} (${one.digest.slice(0, 8)})`]);
  fill("model", options, before.model);
  fill("compare", [["", "none"], ...options], before.compare);
  byId("compare-label").hidden = told.models.length < 2;
  const size = `${Math.round(told.limits.upload_bytes / 1e6)} MB`;
  byId("allowed").textContent = `BMP, JPEG, PNG, TIFF or WebP, up to ${size} each. Nothing is kept.`;
  if (answering !== digests()) renew();
}

function fill(id, options, before) {
  byId(id).replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  if (options.some(([value]) => value === before)) byId(id).value = before;
}

function add({ given, folders = 0, unread = 0, more = false }) {
  if (!given.length && !folders) return;
  const taken = given.slice(0, MOST - items.length);
  alertWith([more || taken.length < given.length ? `The page takes ${plural(MOST, "image")} at a time; others were left out.` : "",
    unread ? `${plural(unread, "file or folder", "files or folders")} inside cannot be read.` : "",
    given.length || unread || more ? "" : "There are no images in the folder."].filter(Boolean).join(" "));
  const added = taken.map((one) => ({ ...one, address: URL.createObjectURL(one.file), answers: null, problem: refusal(one.file) }));
  note = "";
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
    const bytes = await Promise.all(group.map((item) => read(item.file)));
    const readable = group.filter((item, i) => bytes[i]);
    const said = readable.length
      ? await predict(bytes.filter(Boolean), model, compare, mine.signal, () => tell(true)) : [];
    if (mine.signal.aborted) return; // given up at the last moment: others ask about these images now
    said.forEach((image, i) => {
      readable[i].answers = image.problem ? null : image.answers;
      readable[i].problem = image.problem ? sentence(image.problem.message) : null;
    });
    group.forEach((item, i) => {
      if (!bytes[i]) item.problem = UNREADABLE;
      redraw(item);
    });
    tell(false);
    const answers = said.flatMap((image) => image.answers);
    if (answers.some((one) => one.digest !== serving(one.model))) document.dispatchEvent(new Event("models-changed"));
  }
}

function work() {
  tell(false);
  const mine = running;
  const failed = (error) => {
    if (mine.signal.aborted) return;
    begin();
    stop(true);
    tell(false);
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
  items.filter((item) => !item.answers && !item.problem && Boolean(item.stopped) !== stopped).forEach((item) => {
    item.stopped = stopped;
    redraw(item);
  });
}

function again() {
  alertWith("");
  resume();
}

export function resume() {
  stop(false);
  work();
}

// Other models are asked about the same images.
function askAgain() {
  begin();
  alertWith("");
  note = "";
  items.forEach((item) => {
    item.answers = null;
    item.problem = refusal(item.file);
    item.stopped = false;
    redraw(item);
  });
  if (items.length) work();
}

// Another bundle has taken the place of a chosen model: what the one before it said is asked anew.
function renew() {
  begin();
  const old = items.filter((item) => item.answers && item.answers.map((said) => said.digest).join() !== digests());
  old.forEach((item) => { item.answers = null; });
  note = old.length ? "All were asked again: another bundle answers now" : "";
  items.forEach((item) => {
    item.stopped = false;
    redraw(item);
  });
  if (items.length) work();
}

function clear() {
  items.forEach((item) => URL.revokeObjectURL(item.address));
  items = [];
  note = "";
  begin();
  byId("results").replaceChildren();
  alertWith("");
  tell(false);
  byId("choose").focus();
}

export function start() {
  begin();
  const room = () => (!byId("images").hidden && state.limits ? MOST - items.length : null);
  listen(room, add);
  byId("clear").addEventListener("click", clear);
  byId("save").addEventListener("click", () => save(csv(items, nameOf, state.notice), "endocil-predictions.csv"));
  byId("model").addEventListener("change", askAgain);
  byId("compare").addEventListener("change", askAgain);
}

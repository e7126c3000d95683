// The images view: images are added, sent to the server in groups, and shown with their predictions.
import { predict } from "/assets/api.js";
import { csv, save } from "/assets/csv.js";
import { byId, make, plural, sentence, showAlert } from "/assets/dom.js";
import { forgetEvidence } from "/assets/evidence.js";
import { listen, readBytes } from "/assets/files.js";
import { imageElement, showStatus } from "/assets/results.js";

const GROUP = 8; // images of one request: results appear as they arrive
const WORKERS = 2; // requests at once
const FORM_BYTES = 10000; // of the form around the images
const MAX_IMAGES = 1000; // on the page
const UNREADABLE = "Cannot be read: it has changed since it was chosen, or is not a file. Choose it again.";
let served = { models: [], limits: null, disclaimer: "" };
let items = []; // { file, name, address, element, predictions, error, sent, stopped, drawn }
let note = ""; // why all images were sent again
let running = null; // AbortController of the requests under way, with the number of workers

const selected = () => ({ model: byId("model").value, compare: byId("compare").value });
const names = new Map(); // by digest: a prediction keeps the name of the model that made it
const title = (model) => `${model.name}, version ${model.version}`;
const modelName = (prediction) => `${names.get(prediction.digest) || prediction.model} (${prediction.digest.slice(0, 8)})`;
const hasGradcam = (prediction) => served.models.some((model) => model.digest === prediction.digest && model.gradcam);
const digestOf = (id) => (served.models.find((model) => model.id === id) || {}).digest;
const selectedDigests = () => Object.values(selected()).filter(Boolean).map(digestOf).join();
const isOpen = (item) => !item.predictions && !item.error;
const update = (busy = false) => showStatus(items, note, busy);

export function show(fromServer) {
  const before = selected();
  const digestsBefore = selectedDigests();
  served = fromServer;
  served.models.forEach((model) => names.set(model.digest, title(model)));
  const options = served.models.map((model) => [model.id, `${title(model)} (${model.digest.slice(0, 8)})`]);
  fillSelect("model", options, before.model);
  fillSelect("compare", [["", "none"], ...options], before.compare);
  byId("compare-label").hidden = served.models.length < 2;
  const size = `${Math.round(served.limits.upload_bytes / 1e6)} MB`;
  byId("allowed").textContent = `BMP, DICOM, JPEG, PNG, TIFF or WebP, up to ${size} each. Nothing is stored.`;
  if (digestsBefore !== selectedDigests()) resendOutdated();
}

function fillSelect(id, options, before) {
  byId(id).replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  if (options.some(([value]) => value === before)) byId(id).value = before;
}

function add({ files, folders = 0, unreadable = 0, truncated = false }) {
  if (!files.length && !folders) return;
  const accepted = files.slice(0, MAX_IMAGES - items.length);
  showAlert([
    truncated || accepted.length < files.length ? `The page takes ${plural(MAX_IMAGES, "image")} at a time; others were left out.` : "",
    unreadable ? `${plural(unreadable, "file or folder", "files or folders")} inside cannot be read.` : "",
    files.length || unreadable || truncated ? "" : "There are no images in the folder.",
  ].filter(Boolean).join(" "));
  const added = accepted.map((one) => ({ ...one, address: URL.createObjectURL(one.file), predictions: null, error: sizeError(one.file) }));
  note = "";
  setStopped(false);
  items = [...items, ...added];
  added.forEach((item) => {
    item.element = imageElement(item, modelName, hasGradcam);
    byId("results").append(item.element);
  });
  startWorkers();
}

function sizeError(file) {
  const limit = served.limits.upload_bytes - FORM_BYTES;
  if (file.size > limit) return `Larger than ${(limit / 1e6).toFixed(1)} MB, the limit of this server.`;
  return file.size ? null : "The file is empty.";
}

function redraw(item) {
  forgetEvidence(item);
  const element = imageElement(item, modelName, hasGradcam);
  item.element.replaceWith(element);
  item.element = element;
}

// The next images that fit into one request.
function nextGroup() {
  const group = [];
  let bytes = 0;
  for (const item of items) {
    if (!isOpen(item) || item.sent) continue;
    bytes += item.file.size;
    const full = group.length >= Math.min(GROUP, served.limits.images);
    if (full || (group.length && bytes > served.limits.upload_bytes - FORM_BYTES)) break;
    item.sent = true;
    group.push(item);
  }
  return group;
}

// Each frame of a DICOM file is an image of its own, below the first one.
function setResults(item, results) {
  const set = (one, result) => {
    one.predictions = result.error ? null : result.predictions;
    one.error = result.error ? sentence(result.error.message) : null;
  };
  if (item.frame || !results[0].frame) return set(item, results.find((result) => (result.frame || null) === (item.frame || null)) || results[0]);
  const frames = results.map((result) => ({ ...item, name: `${item.name}#${result.frame}`, frame: result.frame }));
  frames.forEach((frame, i) => set(frame, results[i]));
  frames.slice(1).forEach((frame) => { frame.element = imageElement(frame, modelName, hasGradcam); });
  item.element.after(...frames.slice(1).map((frame) => frame.element));
  items.splice(items.indexOf(item) + 1, 0, ...frames.slice(1));
  return Object.assign(item, frames[0], { element: item.element });
}

async function work(controller) {
  const { model, compare } = selected();
  for (let group = nextGroup(); group.length; group = nextGroup()) {
    const bytes = await Promise.all(group.map((item) => readBytes(item.file)));
    const readable = group.filter((item, i) => bytes[i]);
    const results = readable.length
      ? await predict(bytes.filter(Boolean), model, compare, controller.signal, () => update(true)) : [];
    if (controller.signal.aborted) return; // other requests handle these images now
    readable.forEach((item, i) => setResults(item, results.filter((result) => result.index === i)));
    group.forEach((item, i) => {
      if (!bytes[i]) item.error = UNREADABLE;
      redraw(item);
    });
    update();
    const predictions = results.flatMap((result) => result.predictions);
    if (predictions.some((one) => one.digest !== digestOf(one.model))) document.dispatchEvent(new Event("models-changed"));
  }
}

function startWorkers() {
  update();
  const controller = running;
  const fail = (error) => {
    if (controller.signal.aborted) return;
    cancel();
    setStopped(true);
    update();
    if (error.status === 401) document.dispatchEvent(new Event("signed-out"));
    else showAlert(error.message, () => { showAlert(""); resume(); });
  };
  while (controller.workers < WORKERS && items.some((item) => isOpen(item) && !item.sent)) {
    controller.workers += 1;
    work(controller).catch(fail).finally(() => { controller.workers -= 1; });
  }
}

// Cancels all requests; their images can be sent again.
function cancel() {
  if (running) running.abort();
  running = new AbortController();
  running.workers = 0;
  items.forEach((item) => { item.sent = false; });
}

function setStopped(stopped) {
  items.filter((item) => isOpen(item) && Boolean(item.stopped) !== stopped).forEach((item) => {
    item.stopped = stopped;
    redraw(item);
  });
}

export function resume() {
  setStopped(false);
  startWorkers();
}

function resend() {
  items.forEach((item) => {
    item.stopped = false;
    redraw(item);
  });
  if (items.length) startWorkers();
}

// Other models were selected.
function resendAll() {
  cancel();
  showAlert("");
  note = "";
  items.forEach((item) => {
    item.predictions = null;
    item.error = sizeError(item.file);
  });
  resend();
}

// A selected model was replaced: predictions of the one before are made again.
function resendOutdated() {
  cancel();
  const outdated = items.filter((item) => item.predictions && item.predictions.map((one) => one.digest).join() !== selectedDigests());
  outdated.forEach((item) => { item.predictions = null; });
  note = outdated.length ? "All images were sent again: the model was replaced" : "";
  resend();
}

function clear() {
  items.forEach((item) => {
    forgetEvidence(item);
    URL.revokeObjectURL(item.address);
  });
  items = [];
  note = "";
  cancel();
  byId("results").replaceChildren();
  showAlert("");
  update();
  byId("choose").focus();
}

export function start() {
  cancel();
  const room = () => (!byId("images").hidden && served.limits ? MAX_IMAGES - items.length : null);
  listen(room, add);
  byId("clear").addEventListener("click", clear);
  byId("save").addEventListener("click", () => save(csv(items, modelName, served.disclaimer), "endocil-predictions.csv"));
  byId("model").addEventListener("change", resendAll);
  byId("compare").addEventListener("change", resendAll);
}

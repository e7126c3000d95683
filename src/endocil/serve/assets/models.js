// The models view: the card of each model, and its replacement by another model file.
import { request } from "/assets/api.js";
import { byId, make, plural, showAlert, table } from "/assets/dom.js";

const DASH = "–";
const number = (value) => (value === null || value === undefined ? DASH : Number(value).toFixed(1));
const time = (text) => `${text.slice(0, 16).replace("T", " ")} UTC`;
const softmax = (card) => (card.results && card.results.heads && card.results.heads.softmax) || null;

function calibrationText(calibration) {
  if (!calibration) return "none: the probabilities are overconfident, and no image is flagged as out of distribution";
  const errors = `error ${(100 * calibration.error).toFixed(1)} %, before ${(100 * calibration.error_before).toFixed(1)} %`;
  const flags = calibration.ood_threshold === null
    ? "too few to flag images as out of distribution"
    : `${(100 * calibration.ood_rate).toFixed(0)} % of images of learned classes are flagged as out of distribution`;
  return `on ${plural(calibration.images, "held-out image")}; ${errors}; ${flags}`;
}

const GATES = { passed: "Gate passed", refused: "Gate refused" };

function gateText(gate) {
  if (!gate) return "no verdict: it was not compared with another version by rules";
  return `${gate.passed ? "passed" : "refused"} on ${gate.made.slice(0, 10)} by ${gate.rules} (${gate.rules_digest.slice(0, 8)}), on `
    + `${plural(gate.images, "image")} of ${gate.test}, in place of ${gate.old_title} (${gate.old.slice(0, 8)})`;
}

function properties(card) {
  const rows = [
    ["Release", gateText(card.gate)],
    ["File", `${card.model.file}, ${card.model.digest.slice(0, 16)}`],
    ["Method", `${card.method} on ${card.backbone}`],
    ["Learned", `${plural(card.classes.length, "class", "classes")} in ${plural(card.tasks.length, "task")}`],
    ["Created", time(card.model.created)],
    ["Input", `${card.preprocessing.size} x ${card.preprocessing.size} pixels`],
    ["Calibration", calibrationText(card.calibration)],
    ["Licence", card.terms.licence || "not given"],
    ["Consent", card.terms.consent || "not given"],
  ];
  return make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

function classTable(card) {
  const recalls = (softmax(card) || {}).recall;
  const columns = [ // columns without a value in any row are left out
    ["class", (learned) => learned.name],
    ["task", (learned) => String(learned.task + 1)],
    ["images", (learned) => learned.images.toLocaleString("en")],
    Object.values(card.exemplars).some(Boolean) ? ["exemplars", (learned) => String(card.exemplars[learned.name])] : null,
    recalls ? ["recall,\u00a0%", (learned) => (recalls[learned.name] ? number(recalls[learned.name].value) : DASH)] : null,
  ].filter(Boolean);
  const rows = card.classes.map((learned) => columns.map(([, cell]) => cell(learned)));
  return make("div", { className: "scroll" }, table(columns.map(([name]) => name), rows, { numeric: [1, 2, 3, 4], rowHeaders: true }));
}

function results(card) {
  const head = softmax(card);
  if (!head) return make("p", { className: "faint" }, card.gate ? "Measured by its release gate alone." : "This version was not tested.");
  const interval = (name) => head[name] && `${number(head[name].value)} (${number(head[name].low)} to ${number(head[name].high)})`;
  const images = plural(card.results.images, `${card.results.part} image`);
  return make("p", {}, `On ${images}: accuracy ${interval("acc_last")} %, F1 ${interval("f1_last")} %.`);
}

function history(card) {
  const text = (step) => [time(step.made), step.by, step.note].filter(Boolean).join(", ");
  return make("details", {}, make("summary", {}, `History: ${plural(card.history.length, "step")}`),
    make("ol", {}, ...card.history.map((step) => make("li", {}, text(step)))));
}

function swapForm(card, files, reload) {
  if (!files.length) return null;
  const select = make("select", {}, ...files.map((name) => make("option", { value: name }, name)));
  if (files.includes(card.model.file)) select.value = card.model.file;
  const button = make("button", { type: "submit", id: `swap-${card.model.id}` }, "Replace");
  const setBusy = (busy) => { button.ariaDisabled = String(busy); }; // a disabled button would lose the focus
  const form = make("form", { className: "row" }, make("label", {}, "Other model file ", select), button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (button.ariaDisabled === "true") return null;
    setBusy(true);
    showAlert("");
    byId("models-status").textContent = `Loading ${select.value} …`;
    try {
      const { model } = await request(`/models/${card.model.id}`, {
        method: "PUT", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ file: select.value }),
      });
      await reload();
      byId(button.id).focus(); // of the new card
      byId("models-status").textContent = `${model.file} is now in use as ${model.id}.`;
    } catch (error) {
      byId("models-status").textContent = "";
      setBusy(false);
      if (error.status === 401) return document.dispatchEvent(new Event("signed-out"));
      showAlert(error.message);
      byId("alert").scrollIntoView({ block: "nearest" });
    }
  });
  return form;
}

export async function show(served, reload) {
  const cards = await Promise.all(served.models.map((model) => request(`/models/${model.id}`)));
  byId("only-gated").hidden = !served.only_gated;
  byId("cards").replaceChildren(...cards.map((card) => make("article", { className: "card" },
    make("h2", {}, `${card.model.name}, version ${card.model.version} `,
      make("span", { className: "id" }, `${card.model.id}, ${card.model.digest.slice(0, 8)}`),
      " ", make("span", { className: card.model.gate === "passed" ? "flag good" : "flag" }, GATES[card.model.gate] || "No gate")),
    swapForm(card, served.files, reload), properties(card), results(card), classTable(card), history(card))));
}

// The cards of the models, and the exchange of one for another bundle.
import { ask } from "/assets/api.js";
import { alertWith, byId, make, plural } from "/assets/dom.js";

const number = (value) => (value === null || value === undefined ? "–" : Number(value).toFixed(1));

function facts(card) {
  const { model, calibration } = card;
  const told = [
    ["Bundle", `${model.bundle}, ${model.digest.slice(0, 16)}`],
    ["Method", `${card.method} on ${card.backbone}`],
    ["Learned", `${plural(card.classes.length, "class", "classes")} in ${plural(card.tasks.length, "task")}`],
    ["Made", `${model.made.slice(0, 16).replace("T", " ")} UTC`],
    ["Input", `${card.preprocessing.size} x ${card.preprocessing.size} pixels`],
    ["Calibration", calibration
      ? `on ${plural(calibration.images, "held-out image")}; error ${(100 * calibration.error).toFixed(1)} %, ` +
        `before ${(100 * calibration.error_before).toFixed(1)} %; ` + (calibration.unlike_threshold === null
          ? "too few to flag images as unlike"
          : `${(100 * calibration.unlike_rate).toFixed(0)} % of learned images are flagged as unlike`)
      : "none: probabilities are too sure, and nothing is flagged as unlike anything learned"],
    ["Licence", card.terms.licence || "not said"],
    ["Consent", card.terms.consent || "not said"],
  ];
  return make("dl", {}, ...told.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

function classes(card) {
  const head = card.results && card.results.heads && card.results.heads.softmax;
  const recalls = (head && head.recall) || {};
  const row = (learned) => make("tr", {}, make("th", { scope: "row" }, learned.name),
    make("td", { className: "n" }, String(learned.task + 1)),
    make("td", { className: "n" }, learned.images.toLocaleString("en")),
    make("td", { className: "n" }, String(card.exemplars[learned.name])),
    make("td", { className: "n" }, recalls[learned.name] ? number(recalls[learned.name].value) : "–"));
  const heads = ["class", "task", "images", "exemplars", "recall,\u00a0%"];
  return make("div", { className: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map((text, i) => make("th", { scope: "col", className: i ? "n" : "" }, text)))),
    make("tbody", {}, ...card.classes.map(row))));
}

function results(card) {
  const head = card.results && card.results.heads && card.results.heads.softmax;
  if (!head) return make("p", { className: "faint" }, "Not tested in this version.");
  const said = (name) => head[name] && `${number(head[name].value)} (${number(head[name].low)} to ${number(head[name].high)})`;
  const text = `On ${plural(card.results.images, `${card.results.part} image`)}: accuracy ${said("acc_last")} %, F1 ${said("f1_last")} %.`;
  return make("p", {}, text);
}

function history(card) {
  const text = (step) => [`${step.made.slice(0, 16).replace("T", " ")} UTC`, step.by, step.note].filter(Boolean).join(", ");
  return make("details", {}, make("summary", {}, `History: ${plural(card.history.length, "step")}`),
    make("ol", {}, ...card.history.map((step) => make("li", {}, text(step)))));
}

function exchange(card, bundles, reload) {
  if (!bundles.length) return null;
  const select = make("select", {}, ...bundles.map((name) => make("option", { value: name }, name)));
  if (bundles.includes(card.model.bundle)) select.value = card.model.bundle;
  const button = make("button", { type: "submit", id: `exchange-${card.model.id}` }, "Put into service");
  const busy = (yes) => { button.ariaDisabled = String(yes); }; // truly disabled, it would lose the focus
  const form = make("form", { className: "row" }, make("label", {}, "Another bundle ", select), button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (button.ariaDisabled === "true") return null;
    busy(true);
    alertWith("");
    byId("models-status").textContent = `Loading ${select.value} …`;
    try {
      const told = await ask(`/models/${card.model.id}`, {
        method: "PUT", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ bundle: select.value }),
      });
      await reload();
      byId(button.id).focus(); // its place has been taken by another
      byId("models-status").textContent = `${told.model.bundle} answers now as ${told.model.id}.`;
    } catch (error) {
      byId("models-status").textContent = "";
      busy(false);
      if (error.status === 401) return document.dispatchEvent(new Event("signed-out"));
      alertWith(error.message);
      byId("alert").scrollIntoView({ block: "nearest" });
    }
  });
  return form;
}

export async function show(told, reload) {
  const cards = await Promise.all(told.models.map((one) => ask(`/models/${one.id}`)));
  byId("cards").replaceChildren(...cards.map((card) => make("article", { className: "card" },
    make("h2", {}, card.model.name, " ", make("span", { className: "id" }, `${card.model.id}, ${card.model.digest.slice(0, 8)}`)), exchange(card, told.bundles, reload), facts(card), results(card), classes(card), history(card))));
}

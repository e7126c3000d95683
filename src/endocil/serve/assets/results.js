// One image with its predictions, and the status line of all images.
import { byId, make, percent, plural } from "/assets/dom.js";
import { evidenceElement } from "/assets/evidence.js";

const OUT_OF_DISTRIBUTION = "Out of distribution";

function thumbnail(item) {
  const missing = () => make("div", { className: "thumb no-thumb" }, "no preview");
  const image = make("img", { className: "thumb", loading: "lazy", decoding: "async", src: item.address, alt: `Image ${item.name}` });
  image.addEventListener("error", () => image.replaceWith(missing()));
  return image;
}

function probabilities(top) {
  return make("ol", { className: "probabilities" }, ...top.map(({ name, probability }) => {
    const bar = make("span", {});
    bar.style.width = percent(probability).replace(" ", "");
    return make("li", {}, make("span", { className: "name" }, name), make("span", { className: "value" }, percent(probability)),
      make("span", { className: "track", ariaHidden: "true" }, bar));
  }));
}

function exemplars(prediction) {
  if (!prediction.nearest.length) return null;
  return make("div", {}, make("p", { className: "faint" }, "Most similar exemplars"),
    make("ul", { className: "exemplars" }, ...prediction.nearest.map((nearest) => make("li", {},
      make("img", { src: nearest.url, alt: "", loading: "lazy", width: 88, height: 88 }), nearest.class_name))));
}

function predictionSet({ prediction_set: names, coverage }) {
  if (!names) return null;
  return make("p", { className: "faint" }, `Not excluded at a coverage of ${Math.round(100 * coverage)} %: ${names.join(", ") || "no class"}`);
}

function nearestMean(prediction) {
  const first = prediction.nearest_mean && prediction.nearest_mean[0];
  if (!first || first.name === prediction.top[0].name) return null;
  return make("p", { className: "faint" }, `By class means: ${first.name}, ${percent(first.probability)}`);
}

function predictionElement(item, prediction, modelName, hasGradcam) {
  let note = "";
  if (!prediction.calibrated) note = "Not calibrated: these probabilities are overconfident.";
  else if (prediction.out_of_distribution === null) note = "Too few held-out images to flag images as out of distribution.";
  return make("div", { className: "prediction" },
    make("div", { className: "result" },
      make("div", { className: "head" }, modelName ? make("p", { className: "model-name" }, modelName) : null,
        prediction.out_of_distribution ? make("span", { className: "flag" }, OUT_OF_DISTRIBUTION) : null),
      probabilities(prediction.top), predictionSet(prediction), nearestMean(prediction), note ? make("p", { className: "faint" }, note) : null),
    exemplars(prediction), hasGradcam(prediction) ? evidenceElement(item, prediction) : null);
}

function content(item, modelName, hasGradcam) {
  if (item.error) return make("p", { className: "problem" }, item.error);
  if (item.predictions) {
    const several = item.predictions.length > 1;
    return make("div", { className: several ? "predictions" : "predictions one" },
      ...item.predictions.map((prediction) => predictionElement(item, prediction, several ? modelName(prediction) : "", hasGradcam)));
  }
  return item.stopped ? make("p", { className: "faint" }, "Not predicted yet.") : make("p", { className: "waiting" }, "Waiting …");
}

// modelName(prediction), hasGradcam(prediction): of the model that made it.
export function imageElement(item, modelName, hasGradcam) {
  const classes = new Set((item.predictions || []).map((prediction) => prediction.top[0].name));
  const head = make("p", { className: "file" }, item.name,
    classes.size > 1 ? make("span", { className: "flag" }, "The models disagree") : null);
  return make("li", {}, thumbnail(item), make("div", {}, head, content(item, modelName, hasGradcam)));
}

export function showStatus(items, note, busy) {
  const done = items.filter((item) => item.predictions || item.error).length;
  const errors = items.filter((item) => item.error).length;
  const flagged = items.filter((item) => (item.predictions || []).some((one) => one.out_of_distribution)).length;
  byId("bar").hidden = !items.length;
  byId("images").classList.toggle("has-results", items.length > 0);
  byId("save").disabled = done === 0;
  byId("progress").hidden = done === items.length || items.some((item) => item.stopped);
  byId("progress").value = items.length ? done / items.length : 0;
  const summary = [`${plural(done - errors, "image")} predicted`, flagged ? `${flagged} out of distribution` : "",
    errors ? plural(errors, "error") : ""].filter(Boolean).join(", ");
  const progress = done < items.length ? `${done} of ${plural(items.length, "image")} predicted` : summary;
  byId("status").textContent = [progress, note, busy ? "The server is busy; trying again …" : ""].filter(Boolean).join(". ");
}

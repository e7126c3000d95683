// One image and what the models said of it.
import { make, percent } from "/assets/dom.js";

function thumb(item) {
  const missing = () => make("div", { className: "thumb no-thumb" }, "no preview");
  const image = make("img", { className: "thumb", loading: "lazy", decoding: "async", src: item.address, alt: `Image ${item.name}` });
  image.addEventListener("error", () => image.replaceWith(missing()));
  return image;
}

function shares(top) {
  return make("ol", { className: "shares" }, ...top.map((one) => {
    const bar = make("span", {});
    bar.style.width = percent(one.probability).replace(" ", "");
    return make("li", {}, make("span", { className: "name" }, one.name),
      make("span", { className: "value" }, percent(one.probability)),
      make("span", { className: "track", ariaHidden: "true" }, bar));
  }));
}

function exemplars(said) {
  if (!said.nearest.length) return null;
  return make("div", {}, make("p", { className: "faint" }, "Most alike of what it remembers"),
    make("ul", { className: "near" }, ...said.nearest.map((near) => {
      const picture = make("img", { src: near.picture, alt: "", loading: "lazy", width: 88, height: 88 });
      return make("li", {}, picture, near.name);
    })));
}

function meanHead(said) {
  const first = said.nearest_mean && said.nearest_mean[0];
  if (!first || first.name === said.top[0].name) return null;
  return make("p", { className: "faint" }, `By class means: ${first.name}, ${percent(first.probability)}`);
}

function answer(said, name, several) {
  const unsure = said.unlike === null ? "Too few held-out images to say what is unlike anything learned." : "";
  const note = said.calibrated ? unsure : "Not calibrated: these probabilities are too sure.";
  return make("div", { className: "answer" },
    make("div", { className: "told" },
      make("div", { className: "head" }, several ? make("p", { className: "who" }, name) : null,
        said.unlike ? make("span", { className: "flag" }, "Unlike anything learned") : null),
      shares(said.top), meanHead(said), note ? make("p", { className: "faint" }, note) : null),
    exemplars(said));
}

export function drawn(item, nameOf) {
  const names = new Set((item.answers || []).map((said) => said.top[0].name));
  const head = make("p", { className: "file" }, item.name,
    names.size > 1 ? make("span", { className: "flag" }, "The models disagree") : null);
  let body = item.stopped ? make("p", { className: "faint" }, "Not answered yet.") : make("p", { className: "waiting" }, "Waiting …");
  if (item.problem) body = make("p", { className: "problem" }, item.problem);
  else if (item.answers) {
    const several = item.answers.length > 1;
    body = make("div", { className: several ? "answers" : "answers one" }, ...item.answers.map((said) => answer(said, nameOf(said), several)));
  }
  return make("li", {}, thumb(item), make("div", {}, head, body));
}

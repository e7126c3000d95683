// Grad-CAM of one prediction, on request: a button, and the image in its own size with the evidence drawn over it.
import { gradcam } from "/assets/api.js";
import { make } from "/assets/dom.js";
import { readBytes } from "/assets/files.js";

const CHANGED = "The file has changed since it was chosen. Choose it again.";

async function figure(item, prediction, name) {
  const bytes = await readBytes(item.file);
  if (!bytes) throw new Error(CHANGED);
  const { blob, digest } = await gradcam(bytes, prediction.model, name, item.frame || 1);
  if (digest !== prediction.digest) { // of a model that has replaced this one: all images are sent again
    document.dispatchEvent(new Event("models-changed"));
    return "";
  }
  const address = URL.createObjectURL(blob);
  item.drawn = [...(item.drawn || []), address];
  const image = make("img", { src: address, alt: `Evidence for ${name} in ${item.name}` });
  await image.decode();
  return make("figure", {}, image, make("figcaption", { className: "faint" },
    `Evidence for ${name}, strongest where it is yellow (Grad-CAM). It shows where the network looked, not whether it was right. `,
    make("a", { href: address, download: "evidence.png" }, `Save, ${image.naturalWidth} x ${image.naturalHeight} pixels`)));
}

export function evidenceElement(item, prediction) {
  const name = prediction.top[0].name;
  const place = make("div", { role: "status" });
  const button = make("button", { type: "button", ariaExpanded: "false" }, "Show evidence");
  const show = (open, content) => {
    button.ariaExpanded = String(open);
    button.textContent = open ? "Hide evidence" : "Show evidence";
    place.replaceChildren(...(content ? [content] : []));
  };
  button.addEventListener("click", async () => {
    if (button.ariaExpanded === "true") {
      forgetEvidence(item);
      show(false);
      return;
    }
    show(true, make("p", { className: "waiting" }, "Drawing …"));
    try {
      const drawn = await figure(item, prediction, name);
      if (button.ariaExpanded === "true") show(true, drawn); // not hidden meanwhile
    } catch (error) {
      show(false, make("p", { className: "problem" }, error.message));
      if (error.status === 401) document.dispatchEvent(new Event("signed-out"));
    }
  });
  return make("div", { className: "evidence" }, button, place);
}

export function forgetEvidence(item) {
  (item.drawn || []).forEach((address) => URL.revokeObjectURL(address));
  item.drawn = [];
}

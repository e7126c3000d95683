// How far it is with all images, in one line.
import { byId, plural } from "/assets/dom.js";

export function tellOf(items, note, busy) {
  const done = items.filter((item) => item.answers || item.problem).length;
  const unlike = items.filter((item) => (item.answers || []).some((said) => said.unlike)).length;
  const problems = items.filter((item) => item.problem).length;
  byId("bar").hidden = !items.length;
  byId("images").classList.toggle("has-results", items.length > 0);
  byId("save").disabled = done === 0;
  byId("progress").hidden = done === items.length || items.some((item) => item.stopped);
  byId("progress").value = items.length ? done / items.length : 0;
  const facts = [`${plural(done - problems, "image")} answered`, unlike ? `${unlike} unlike anything learned` : "",
    problems ? plural(problems, "problem") : ""].filter(Boolean).join(", ");
  const way = done < items.length ? `${done} of ${plural(items.length, "image")} answered` : facts;
  byId("status").textContent = [way, note, busy ? "The server is busy; trying again …" : ""].filter(Boolean).join(". ");
}

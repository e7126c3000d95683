// Finished runs with a way to their reports.
import { ask } from "/assets/api.js";
import { byId, make, plural } from "/assets/dom.js";

function row(run) {
  const name = run.report ? make("a", { href: run.report, target: "_blank", rel: "noopener" }, run.name) : run.name;
  return make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, run.method),
    make("td", { className: "n" }, String(run.classes)), make("td", { className: "n" }, String(run.tasks)),
    make("td", { className: "n" }, run.accuracy === null ? "–" : run.accuracy.toFixed(1)));
}

export async function show() {
  byId("runs-status").textContent = "Loading …";
  byId("runs-table").replaceChildren();
  const { runs, left_out: others } = await ask("/runs");
  const found = `${plural(runs.length, "finished run")}; a name leads to the report.`;
  const more = others ? ` ${plural(others, "other is", "others are")} not listed.` : "";
  byId("runs-status").textContent = runs.length ? found + more : "There are no finished runs in the folder yet.";
  if (!runs.length) return;
  const heads = ["run", "method", "classes", "tasks", "accuracy,\u00a0%"];
  const numbers = [2, 3, 4];
  byId("runs-table").replaceChildren(make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map((text, i) => make("th", { scope: "col", className: numbers.includes(i) ? "n" : "" }, text)))),
    make("tbody", {}, ...runs.map(row))));
}

// The runs view: finished runs with links to their reports.
import { request } from "/assets/api.js";
import { byId, make, plural, table } from "/assets/dom.js";

const HEADERS = ["run", "method", "classes", "tasks", "accuracy,\u00a0%"];

function cells(run) {
  const name = run.report ? make("a", { href: run.report, target: "_blank", rel: "noopener" }, run.name) : run.name;
  return [name, run.method, String(run.classes), String(run.tasks), run.accuracy === null ? "–" : run.accuracy.toFixed(1)];
}

export async function show() {
  byId("runs-status").textContent = "Loading …";
  byId("runs-table").replaceChildren();
  const { runs, left_out: leftOut } = await request("/runs");
  const more = leftOut ? ` ${plural(leftOut, "other is", "others are")} not listed.` : "";
  byId("runs-status").textContent = runs.length
    ? `${plural(runs.length, "finished run")}; a name leads to the report.${more}` : "There are no finished runs in the folder yet.";
  if (runs.length) byId("runs-table").replaceChildren(table(HEADERS, runs.map(cells), { numeric: [2, 3, 4], rowHeaders: true }));
}

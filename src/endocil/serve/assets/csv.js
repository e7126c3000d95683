// The results as a CSV file, one line for each image and model.
const HEAD = ["image", "model", "bundle", "class", "probability", "second", "second_probability", "third",
  "third_probability", "calibrated", "unlike", "unlike_score", "problem", "notice"];

// A spreadsheet would run a cell that begins like a formula.
function cell(value) {
  const text = value === null || value === undefined ? "" : String(value);
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function lines(item, nameOf, notice) {
  if (item.problem) return [[item.name, ...Array(11).fill(""), item.problem, notice]];
  return (item.answers || []).map((said) => {
    const best = [0, 1, 2].flatMap((i) => (said.top[i] ? [said.top[i].name, said.top[i].probability] : ["", ""]));
    const end = [said.calibrated, said.unlike, said.unlike_score, "", notice];
    return [item.name, nameOf(said), said.digest, ...best, ...end];
  });
}

export function csv(items, nameOf, notice) {
  const rows = items.flatMap((item) => lines(item, nameOf, notice));
  return [HEAD, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

export function save(text, name) {
  const address = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// The results as a CSV file: one line for each image and model.
const HEADER = ["image", "model", "digest", "class", "probability", "second", "second_probability", "third",
  "third_probability", "calibrated", "out_of_distribution", "ood_score", "prediction_set", "coverage", "error", "disclaimer"];

// A spreadsheet would execute a cell that begins like a formula.
function cell(value) {
  const text = value === null || value === undefined ? "" : String(value);
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function rowsOf(item, modelName, disclaimer) {
  if (item.error) return [[item.name, ...Array(13).fill(""), item.error, disclaimer]];
  return (item.predictions || []).map((prediction) => {
    const top = [0, 1, 2].map((i) => prediction.top[i] || { name: "", probability: "" });
    return [item.name, modelName(prediction), prediction.digest, ...top.flatMap((one) => [one.name, one.probability]),
      prediction.calibrated, prediction.out_of_distribution, prediction.ood_score, (prediction.prediction_set || []).join(" | "), prediction.prediction_set ? prediction.coverage : "",
      "", disclaimer];
  });
}

export function csv(items, modelName, disclaimer) {
  const rows = items.flatMap((item) => rowsOf(item, modelName, disclaimer));
  return [HEADER, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

export function save(text, name) {
  const address = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

"use strict";
// Labels typed on the page go into the second column of the list, which is saved as it stands in the file otherwise.
const data = JSON.parse(document.getElementById("data").textContent);
const inputs = [...document.querySelectorAll("[data-row]")];
const status = document.getElementById("status");
const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

// The end of the first field of a line, which may be quoted.
function firstField(line) {
  if (!line.startsWith('"')) return line.indexOf(",");
  let end = 1;
  while (line[end] !== '"' || line[end + 1] === '"') end += line[end] === '"' ? 2 : 1;
  return end + 1;
}

function completed() {
  const lines = [...data.lines];
  for (const input of inputs) {
    const row = Number(input.dataset.row);
    const end = firstField(lines[row]);
    lines[row] = `${lines[row].slice(0, end + 1)}${quoted(input.value.trim())}${lines[row].slice(end + 1)}`;
  }
  return `${lines.join("\n")}\n`;
}

function count() {
  const n = inputs.filter((input) => input.value.trim()).length;
  status.textContent = `${n} of ${inputs.length} named`;
}

document.querySelectorAll(".script").forEach((element) => { element.hidden = false; });
document.addEventListener("input", count);
document.getElementById("save").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([completed()], { type: "text/csv" }));
  link.download = data.file;
  link.click();
  URL.revokeObjectURL(link.href);
});
window.addEventListener("beforeunload", (event) => { if (inputs.some((input) => input.value.trim())) event.preventDefault(); });
count();

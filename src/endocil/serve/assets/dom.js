// Elements are made from text, never from markup: a class or a file can have any name.
export const byId = (id) => document.getElementById(id);

// Characters that turn the direction of text, or steer a terminal, are written out: a name is shown as what it is.
const TRICKS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

export function visible(text) {
  return text.replace(TRICKS, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function make(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  const given = children.filter((child) => child !== null && child !== undefined && child !== "");
  element.append(...given.map((child) => (typeof child === "string" ? visible(child) : child)));
  return element;
}

// numeric: indices of right-aligned columns; rows: arrays of cells, the first of each is its header if `rowHeaders`.
export function table(headers, rows, { numeric = [], rowHeaders = false } = {}) {
  const className = (i) => (numeric.includes(i) ? "n" : "");
  const header = (text, i) => make("th", { scope: "col", className: className(i) }, text);
  const cell = (content, i) => (rowHeaders && i === 0 ? make("th", { scope: "row" }, content) : make("td", { className: className(i) }, content));
  return make("table", {}, make("thead", {}, make("tr", {}, ...headers.map(header))),
    make("tbody", {}, ...rows.map((cells) => make("tr", {}, ...cells.map(cell)))));
}

export const percent = (value) => `${(100 * value).toFixed(1)} %`;
export const plural = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many || one + "s"}`;

// The server's messages begin with a small letter, as lines of a terminal do; a file name stays as it is.
export function sentence(text) {
  const capitalised = /^[a-z]+ /.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
  return /[.?!]$/.test(capitalised) ? capitalised : `${capitalised}.`;
}

export function showAlert(message, retry) {
  const place = byId("alert");
  if (!message) return place.replaceChildren();
  const button = retry ? make("button", { type: "button", onclick: retry }, "Try again") : null;
  return place.replaceChildren(make("div", { className: "problem" }, make("span", {}, message), button));
}

export function startTheme() {
  const root = document.documentElement;
  const button = byId("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("endocil-theme"); } catch { return null; } };
  const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const updateButton = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  if (stored()) root.dataset.theme = stored();
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("endocil-theme", root.dataset.theme); } catch { /* a private window */ }
    updateButton();
  });
  system.addEventListener("change", updateButton);
  updateButton();
}

// Elements are made from text only, never from markup: a class or a file may be called anything.
export const byId = (id) => document.getElementById(id);

export function make(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

export const percent = (share) => `${(100 * share).toFixed(1)} %`;
export const plural = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many || one + "s"}`;

// The server's messages begin small, as lines of a terminal do; a name of a file stays as it is.
export function sentence(text) {
  const begun = /^[a-z]+ /.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
  return /[.?!]$/.test(begun) ? begun : `${begun}.`;
}

export function alertWith(message, again) {
  const place = byId("alert");
  if (!message) return place.replaceChildren();
  const button = again ? make("button", { type: "button", onclick: again }, "Try again") : null;
  return place.replaceChildren(make("div", { className: "problem" }, make("span", {}, message), button));
}

export function startTheme() {
  const root = document.documentElement;
  const button = byId("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const kept = () => { try { return localStorage.getItem("endocil-theme"); } catch { return null; } };
  const dark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const show = () => { button.textContent = dark() ? "Light" : "Dark"; };
  if (kept()) root.dataset.theme = kept();
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("endocil-theme", root.dataset.theme); } catch { /* a private window */ }
    show();
  });
  system.addEventListener("change", show);
  show();
}

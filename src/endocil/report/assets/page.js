// The page works without this script: it only adds the switch between light and dark and opens everything for print.
(function () {
  "use strict";
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");

  function remembered() {
    const wanted = window.location.hash.slice(1);
    if (wanted === "dark" || wanted === "light") return wanted;
    try { return window.localStorage.getItem("endocil-theme"); } catch (refused) { return null; }
  }

  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  }

  function show() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", "Change to " + (isDark() ? "light" : "dark") + " colours");
  }

  button.addEventListener("click", function () {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { window.localStorage.setItem("endocil-theme", root.dataset.theme); } catch (refused) { /* private window */ }
    show();
  });
  system.addEventListener("change", show);

  const theme = remembered();
  if (theme === "dark" || theme === "light") root.dataset.theme = theme;
  button.hidden = false;
  show();

  let closed = [];
  window.addEventListener("beforeprint", function () {
    closed = Array.from(document.querySelectorAll("details:not([open])"));
    closed.forEach(function (part) { part.open = true; });
  });
  window.addEventListener("afterprint", function () {
    closed.forEach(function (part) { part.open = false; });
  });
})();

// The page works without this script, as it is after the last task. The script adds what moves: light and dark, lines
// switched off, one method at a time, any task. It reads the numbers of all tasks from the element "data".
(function () {
  "use strict";
  const INK_CHANGES = 76; // as in html/tables.py
  const root = document.documentElement;
  const all = function (selector, inside) { return Array.from((inside || document).querySelectorAll(selector)); };
  const methods = JSON.parse(document.getElementById("data").textContent);
  all(".script").forEach(function (part) { part.hidden = false; });

  // Light and dark
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

  function showTheme() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", "Change to " + (isDark() ? "light" : "dark") + " colours");
  }

  button.addEventListener("click", function () {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { window.localStorage.setItem("endocil-theme", root.dataset.theme); } catch (refused) { /* private window */ }
    showTheme();
  });
  system.addEventListener("change", showTheme);
  const theme = remembered();
  if (theme === "dark" || theme === "light") root.dataset.theme = theme;
  showTheme();

  // Lines that can be switched off, and stand out while the pointer or the focus is on their name
  all(".switch").forEach(function (group) {
    const boxes = all("input", group);
    const lines = all("g[data-line]", group.closest("figure"));
    const rows = all("tbody tr", group.closest("section").querySelector(".numbers"));

    function showLines() {
      boxes.forEach(function (box, i) {
        lines[i].classList.toggle("off", !box.checked);
        rows[i].classList.toggle("off", !box.checked);
        box.closest("li").classList.toggle("unchecked", !box.checked);
      });
    }

    function lift(chosen) {
      lines.forEach(function (line, i) { line.classList.toggle("faint", chosen !== null && i !== chosen); });
    }

    boxes.forEach(function (box, i) {
      const name = box.closest("label");
      box.hidden = false;
      name.addEventListener("pointerenter", function () { lift(box.checked ? i : null); });
      name.addEventListener("pointerleave", function () { lift(null); });
      box.addEventListener("focus", function () { if (box.matches(":focus-visible")) lift(box.checked ? i : null); });
      box.addEventListener("blur", function () { lift(null); });
      box.addEventListener("change", function () { lift(null); showLines(); });
    });
    all("button", group).forEach(function (one) {
      one.addEventListener("click", function () {
        boxes.forEach(function (box) { box.checked = one.value === "all"; });
        showLines();
      });
    });
    showLines(); // a browser may remember boxes over a reload
  });

  // One method and any task
  const choice = document.getElementById("method-choice");
  const slider = document.getElementById("task-choice");
  const taskText = document.getElementById("task-text");

  function chosen() {
    return choice && choice.value !== "all" ? [Number(choice.value)] : methods.map(function (_, i) { return i; });
  }

  function paint(cell, value, text) {
    const whole = Math.round(value);
    cell.className = value === null ? "" : "v" + whole + (whole > INK_CHANGES ? " hot" : "");
    cell.textContent = value === null ? "" : text;
  }

  function table(section, view) { return section.querySelector('[data-view="' + view + '"]'); }

  function mark(rows, at) {
    rows.forEach(function (cells, i) {
      Array.from(cells).forEach(function (cell) { cell.classList.toggle("now", i === at); });
    });
  }

  function showConfusion(section, matrix, when) {
    const found = table(section, "confusion");
    found.querySelector(".when").textContent = when;
    all("tbody tr", found).forEach(function (row, i) {
      all("td", row).forEach(function (cell, j) {
        const value = i < matrix.length && j < matrix.length ? matrix[i][j] : null;
        paint(cell, value, value === 0 ? "·" : String(Math.round(value)));
      });
    });
  }

  function showClasses(section, rates, when) {
    const found = table(section, "classes");
    const written = function (rate) { return rate === null ? "–" : rate.toFixed(1); };
    found.querySelector(".when").textContent = when;
    all("tbody tr", found).forEach(function (row, i) {
      const own = rates[i] || [null, null, null];
      const cells = all("td", row);
      cells[1].className = own[0] === null ? "n" : "n bar v" + Math.round(own[0]);
      own.forEach(function (rate, j) { cells[1 + j].textContent = written(rate); });
    });
  }

  function showTask(section, method, t) {
    const last = method.confusions.length - 1;
    const at = Math.min(t, last);
    const when = at === last ? "after the last task" : "after task " + (at + 1);
    showConfusion(section, method.confusions[at], when);
    showClasses(section, method.rates[at], when);
    const forgetting = table(section, "forgetting");
    const recall = table(section, "recall");
    if (forgetting && last) mark(all("tbody tr", forgetting).map(function (row) { return row.children; }), at);
    if (recall) {
      const rows = all("tr", recall);
      const columns = method.tasks.map(function (_, s) { return rows.map(function (row) { return row.children[s + 1]; }); });
      mark(columns, at);
    }
  }

  function describeTask(t) {
    const tasks = chosen().map(function (i) { return methods[i].tasks; }).filter(function (own) { return own.length > 1; });
    const alike = tasks.every(function (own) { return JSON.stringify(own) === JSON.stringify(tasks[0]); });
    let text = "After task " + (t + 1);
    if (tasks.length && alike) {
      const own = tasks[0];
      const at = Math.min(t, own.length - 1);
      const known = own.slice(0, at + 1).flat().length;
      text = "After task " + (at + 1) + " of " + own.length + ": " + known + " of " + own.flat().length +
        " classes learned; new: " + own[at].join(", ");
    } else if (!tasks.length) {
      text = "Only the last task can be shown";
    }
    taskText.textContent = text + ".";
    slider.setAttribute("aria-valuetext", text);
  }

  function show() {
    const shown = chosen();
    const most = Math.max.apply(null, shown.map(function (i) { return methods[i].confusions.length; })) - 1;
    all(".method").forEach(function (section, i) { section.classList.toggle("off", !shown.includes(i)); });
    if (!slider) return;
    slider.disabled = most === 0;
    const t = Math.min(Number(slider.value), Number(slider.max)) - 1; // counted from 0 in the numbers
    all(".method").forEach(function (section, i) { showTask(section, methods[i], t); });
    describeTask(t);
  }

  function follow() {
    const wanted = /^#method-(\d+)$/.exec(window.location.hash);
    if (!wanted || !choice) return;
    choice.value = wanted[1];
    show();
    document.getElementById("method-" + wanted[1]).scrollIntoView();
  }

  if (choice) choice.addEventListener("change", show);
  if (slider) slider.addEventListener("input", show);
  window.addEventListener("hashchange", follow);
  all('nav a[href^="#method-"]').forEach(function (link) {
    link.addEventListener("click", function () { window.setTimeout(follow, 0); }); // also where the hash stays
  });
  show();
  follow();

  // On paper: everything open, and the last task
  let before = null;
  window.addEventListener("beforeprint", function () {
    const closed = all("details:not([open])");
    before = { closed: closed, task: slider && slider.value };
    closed.forEach(function (part) { part.open = true; });
    if (slider) { slider.value = slider.max; show(); }
  });
  window.addEventListener("afterprint", function () {
    if (!before) return;
    before.closed.forEach(function (part) { part.open = false; });
    if (slider) { slider.value = before.task; show(); }
  });
})();

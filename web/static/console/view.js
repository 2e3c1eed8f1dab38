// The look and the order of the console's pages: the chosen colours, and tables that are sorted by a column.
"use strict";

(() => {
  const NAME = "console-colours";
  const system = matchMedia("(prefers-color-scheme: dark)");
  // The style sheet is loaded before this script. Its rules for dark systems apply to those who choose dark colours.
  const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules])
    .filter((rule) => rule.media?.mediaText.includes("prefers-color-scheme"));

  // A browser may forbid storage to a page.
  function read() {
    try { return localStorage.getItem(NAME); } catch { return null; }
  }
  function write(choice) {
    try {
      if (choice) localStorage.setItem(NAME, choice);
      else localStorage.removeItem(NAME);
    } catch { /* the choice is for this page only */ }
  }

  let choice = ["dark", "light"].includes(read()) ? read() : null;
  const isDark = () => (choice ? choice === "dark" : system.matches);

  function show() {
    const media = { dark: "all", light: "not all" }[choice] ?? "(prefers-color-scheme: dark)";
    for (const rule of rules) rule.media.mediaText = media;
    document.documentElement.style.colorScheme = choice ?? "";
    const button = document.getElementById("colours");
    if (button) button.textContent = isDark() ? "Light" : "Dark";
    document.dispatchEvent(new CustomEvent("console:colours"));
  }
  show();
  system.addEventListener("change", show);

  const UNITS = { ms: 1e-3, s: 1, min: 60, h: 3600, d: 86400, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };
  const NUMBER = /^([\d,]+(?:\.\d+)?)\s*(ms|s|min|h|d|KiB|MiB|GiB)?(?![\w-])/;

  // The number at the beginning of a cell, or null for a cell without one.
  function numberOf(text) {
    const found = NUMBER.exec(text);
    return found && Number(found[1].replaceAll(",", "")) * (UNITS[found[2]] ?? 1);
  }

  function compare(one, other) {
    const [left, right] = [numberOf(one), numberOf(other)];
    if (left !== null && right !== null) return left - right;
    return one.localeCompare(other, undefined, { numeric: true });
  }

  function sort(heading) {
    const place = [...heading.parentElement.children].indexOf(heading);
    const isUp = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of heading.parentElement.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", isUp ? "ascending" : "descending");
    const body = heading.closest("table").tBodies[0];
    const cell = (row) => row.children[place]?.textContent.trim() ?? "";
    const rows = [...body.rows].filter((row) => !row.dataset.pinned);
    rows.sort((one, other) => (isUp ? 1 : -1) * compare(cell(one), cell(other)));
    body.append(...rows);
  }

  // Tables that are replaced while the page is open keep the order of the door.
  const isLive = (table) => table.closest("[id^='panel-'], [sse-swap], [hx-swap-oob]");

  function makeSortable() {
    for (const heading of document.querySelectorAll("main thead th:not(:has(button, .hidden))")) {
      if (isLive(heading.closest("table")) || !heading.textContent.trim()) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.title = "Sort the rows that are shown";
      button.append(...heading.childNodes);
      button.addEventListener("click", () => sort(heading));
      heading.append(button);
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("colours");
    button.hidden = false;
    button.addEventListener("click", () => {
      const wanted = isDark() ? "light" : "dark";
      // A choice that equals the colours of the system is not kept, so that a later change of the system has an effect.
      choice = (wanted === "dark") === system.matches ? null : wanted;
      write(choice);
      show();
    });
    show();
    makeSortable();
  });
})();

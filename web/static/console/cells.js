// Keeps the cell that the address names in the links and the forms of the page, so that the next page is about it too.
"use strict";

(() => {
  const cell = new URLSearchParams(location.search).get("cell");
  if (!cell) return;

  function keep(link) {
    const url = new URL(link.href, location.href);
    if (link.getAttribute("href").startsWith("#") || url.origin !== location.origin) return;
    if (!/^\/console(\/|$)/.test(url.pathname) || url.searchParams.has("cell")) return;
    url.searchParams.set("cell", cell);
    link.setAttribute("href", url.pathname + url.search + url.hash);
  }

  function add(form) {
    if (form.elements.namedItem("cell")) return;
    const field = document.createElement("input");
    field.type = "hidden";
    field.name = "cell";
    field.value = cell;
    form.append(field);
  }

  function look(root) {
    root.querySelectorAll("a[href]").forEach(keep);
    root.querySelectorAll("form[action^='/console'][method='get']").forEach(add);
  }

  look(document);
  // Panels are replaced while the page is open.
  new MutationObserver((changes) => {
    for (const { target } of changes) look(target);
  }).observe(document.body, { childList: true, subtree: true });
})();

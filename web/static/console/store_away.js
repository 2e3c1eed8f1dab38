// The page that is shown in place of one that needs the store: asks for that page again until it can be shown.
"use strict";

(() => {
  const RETRY_MS = 5_000;
  const note = document.getElementById("retries");
  const told = note.textContent;

  async function look() {
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
      if (answer.status !== 503) {
        location.reload();
        return;
      }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const now = page.getElementById("why");
      const shown = document.getElementById("why");
      // An element that is replaced is read aloud again.
      if (now && now.dataset.fault !== shown.dataset.fault) {
        shown.replaceWith(now);
        document.title = page.title;
      }
      note.textContent = told;
    } catch {
      note.textContent = "The door does not answer either. This page tries again every five seconds.";
    }
    setTimeout(look, RETRY_MS);
  }
  setTimeout(look, RETRY_MS);
})();

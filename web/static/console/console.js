// The console's page: asks before each action, holds updates back while they would be in the way, and shows errors.
"use strict";

(() => {
  const held = new Map(); // the newest HTML of each panel that was not shown, by the panel's id
  let isPressed = false;
  let isPaused = false;
  const dialog = document.getElementById("confirm");

  // A panel that is replaced between a press and its release would swallow the click.
  const isActing = () => isPressed || dialog.open;
  const mustHold = () => isActing() || isPaused;

  function showHeld() {
    if (mustHold()) return;
    // Clear first: if one panel cannot be shown, the others must not be held back with it for ever.
    const panels = [...held];
    held.clear();
    for (const [id, html] of panels) {
      htmx.swap(document.getElementById(id), html, { swapStyle: "innerHTML", settleDelay: 0 });
    }
  }

  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    if (!mustHold() || !event.target.id.startsWith("panel-")) return;
    held.set(event.target.id, event.detail.data);
    event.preventDefault();
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    // A search is shown while updates are paused, because the operator has asked for it.
    if (isActing() && event.detail.target.id === "found") event.detail.shouldSwap = false;
  });
  document.addEventListener("pointerdown", () => { isPressed = true; });
  for (const name of ["pointerup", "pointercancel"]) {
    // The click comes after the release.
    document.addEventListener(name, () => setTimeout(() => { isPressed = false; showHeld(); }, 0));
  }

  const pause = document.getElementById("hold");
  pause?.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    document.dispatchEvent(new CustomEvent("console:paused", { detail: isPaused }));
    showHeld();
  });

  // The edited fields of a form whose fields have copies of their values; null for any other element.
  function changesIn(element) {
    const fields = [...(element.elements ?? [])].filter((field) => element.elements[`was-${field.name}`]);
    if (!fields.length) return null;
    const copyOf = (field) => element.elements[`was-${field.name}`].value;
    return fields.filter((field) => field.value.trim() !== copyOf(field)).map((field) =>
      `${field.labels[0].firstChild.data}: ${copyOf(field) || "default"} → ${field.value.trim() || "default"}`);
  }

  let asker = ""; // the id of the element that had the focus then
  let asked = null; // the htmx:confirm event of the question that was asked last
  document.addEventListener("htmx:confirm", (event) => {
    if (!event.detail.question) return;
    event.preventDefault();
    const changes = changesIn(event.detail.elt);
    if (changes?.length === 0) {
      say("Nothing is changed.");
      return;
    }
    asked = event.detail;
    asker = document.activeElement.id;
    document.getElementById("question").textContent = [asked.question, ...(changes ?? [])].join("\n");
    dialog.showModal();
  });
  document.getElementById("yes").addEventListener("click", () => {
    // The confirmed element may be replaced before the door answers, and then its events reach nothing else.
    asked.elt.addEventListener("htmx:responseError", sayError);
    asked.elt.addEventListener("htmx:sendError", sayLost);
    asked.issueRequest(true);
  });
  dialog.addEventListener("close", () => {
    // The event comes after the dialog was closed. The next question may be open by then.
    if (dialog.open) return;
    showHeld();
    document.getElementById(asked.elt.id)?.focus();
  });

  // The button of a form is disabled, or replaced, while the door answers, and then has the focus no more. Until the
  // browser draws again, a button of the closed question may still have it.
  document.addEventListener("htmx:afterRequest", (event) => {
    const focused = document.activeElement;
    const isLost = focused === document.body || (!dialog.open && dialog.contains(focused));
    if (asked && event.detail.requestConfig.elt === asked.elt && isLost) document.getElementById(asker)?.focus();
  });

  function say(text) {
    const line = document.createElement("p");
    line.className = "said problem";
    line.textContent = text;
    document.getElementById("notice").replaceChildren(line);
  }

  function sayError(event) {
    let message = `the door answered ${event.detail.xhr.status}`;
    try {
      const error = JSON.parse(event.detail.xhr.responseText).error;
      message = error.message;
      const field = event.detail.elt.elements?.namedItem(error.param);
      field?.setAttribute("aria-invalid", "true");
      field?.focus();
    } catch {
      // The answer is not one of the door's, such as that of a proxy.
    }
    say(`That did not work: ${message}.`);
  }
  document.addEventListener("input", (event) => event.target.removeAttribute("aria-invalid"));
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const text = document.getElementById(button.dataset.copy);
    getSelection().selectAllChildren(text);
    // Only pages over https or of this machine may write to the clipboard, unless the browser's user forbids it. On
    // others, the text is selected.
    const isCopied = await navigator.clipboard?.writeText(text.textContent).then(() => true, () => false);
    button.textContent = isCopied ? "Copied" : "Selected";
  });
  // A new key is shown once: a browser that keeps the page for its back button would show it again.
  window.addEventListener("pagehide", () => { document.getElementById("new-key")?.closest(".said").remove(); });
  const sayLost = () => say("That did not work: the door does not answer.");
  document.addEventListener("htmx:responseError", sayError);
  document.addEventListener("htmx:sendError", sayLost);

  // The door ends a stream after 15 minutes, and the browser opens the next one 2 s later: nothing is lost.
  const LOST_MS = 6_000;
  const LAST_ONES = "The figures below are the last ones. Connecting again …";
  const state = document.getElementById("panel-state");
  const isOfPage = (stream) => stream.id === "live" || stream.id === "job";
  let lost = 0;

  // Without its store, the door may refuse the stream. Its message then says what is wrong with the store.
  async function whyLost() {
    try {
      const said = await (await fetch("/health/ready")).json();
      if (said.store_fault && said.error) return `No live figures: ${said.error.message}.`;
    } catch {
      // The door does not answer, or a proxy answers for it.
    }
    return "The connection to the door is lost.";
  }

  document.addEventListener("htmx:sseError", (event) => {
    if (!isOfPage(event.target) || lost) return;
    const mine = lost = setTimeout(async () => {
      const why = await whyLost();
      if (lost === mine) state.textContent = `${why} ${LAST_ONES}`;
    }, LOST_MS);
  });
  document.addEventListener("htmx:sseOpen", (event) => {
    if (!isOfPage(event.target)) return;
    clearTimeout(lost);
    // The stream of a job sends its state only while something is wrong.
    if (lost && event.target.id === "job") state.textContent = "";
    lost = 0;
  });
})();

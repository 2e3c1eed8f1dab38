// The playground: builds a request from the fields, sends it, shows its answer as it comes, and can stop it. Nothing is
// kept outside the page.
"use strict";

(() => {
  const MOST_TURNS = 200;
  // The most characters of a request.
  const MOST_SENT = 1_000_000;
  // After a cancel, the stream ends by itself. If it does not within this time, it is closed, which cancels as well.
  const STOP_MS = 5_000;
  const TENANT = /^[A-Za-z0-9_-]{1,64}$/;
  const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
  const NUMBERS = [
    "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty", "repeat_penalty",
    "deadline_ms", "start_within_ms", "priority",
  ];
  const CHOICES = ["auto", "none", "required"];

  const form = document.getElementById("playground");
  if (!form) return;
  const fields = form.elements;
  const byId = (id) => document.getElementById(id);
  const turns = byId("turns");
  const said = byId("said");
  const { Answer, eventsOf, part } = playgroundAnswer;
  const token = JSON.parse(document.body.getAttribute("hx-headers"))["X-Console-Token"];

  let running = null; // the answer that is awaited
  let sent = null; // the last request that was sent, while no field has changed since
  let refused = null; // the last request that was refused, as text, and its return ticket

  // A problem of one field, which is then marked.
  class FieldProblem extends Error {
    constructor(field, message) {
      super(message);
      this.field = field;
    }
  }

  // Turns.

  const allTurns = () => [...turns.children];
  const textOf = (turn) => turn.querySelector("textarea");

  // A turn is added at the end, or after another one that is still there.
  function addTurn(role, { text = "", calls = null, call = null, reasoning = "", after = null } = {}) {
    if (turns.children.length >= MOST_TURNS) {
      say(`A conversation has at most ${MOST_TURNS} turns.`, true);
      return null;
    }
    const turn = byId("turn").content.firstElementChild.cloneNode(true);
    turn.role_ = role;
    turn.calls = calls;
    turn.call = call;
    turn.classList.add(role);
    const name = { user: "User", assistant: "Assistant", tool: `Result of ${call?.function.name}` }[role];
    turn.querySelector(".role").textContent = name;
    textOf(turn).setAttribute("aria-label", name);
    textOf(turn).value = text;
    turn.querySelector('[data-act="again"]').hidden = role === "assistant";
    if (reasoning) turn.insertBefore(part("Reasoning", reasoning), textOf(turn));
    for (const each of calls ?? []) turn.append(part(`Calls ${each.function.name}`, each.function.arguments));
    if (after?.isConnected) after.after(turn);
    else turns.append(turn);
    return turn;
  }

  function message(turn) {
    const content = textOf(turn).value;
    if (turn.role_ === "tool") return { role: "tool", tool_call_id: turn.call.id, content };
    if (turn.calls) return { role: "assistant", content: content || null, tool_calls: turn.calls };
    return { role: turn.role_, content };
  }

  // The request.

  function parsed(name, isRight, what) {
    const text = fields[name].value.trim();
    if (!text) return undefined;
    let value;
    try {
      value = JSON.parse(text);
    } catch (problem) {
      throw new FieldProblem(fields[name], `${name} is no JSON: ${problem.message}`);
    }
    if (!isRight(value)) throw new FieldProblem(fields[name], `${name} is not ${what}`);
    return value;
  }

  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

  // A number that JavaScript cannot hold is sent as text, and the door's answer names the field.
  function number(text) {
    const value = Number(text);
    return NUMBER.test(text) && (!Number.isInteger(value) || Number.isSafeInteger(value)) ? value : text;
  }

  function readStops() {
    if (fields.stop.value.trim().startsWith("[")) return parsed("stop", Array.isArray, "a JSON list");
    const lines = fields.stop.value.split("\n").filter(Boolean);
    return lines.length ? lines : undefined;
  }

  function readChoice() {
    const name = fields.tool_choice.value.trim();
    if (!name) return undefined;
    return CHOICES.includes(name) ? name : { type: "function", function: { name } };
  }

  function readFormat() {
    const schema = parsed("response_format", isObject, "a JSON object");
    if (schema === undefined) return undefined;
    const isWhole = ["json_schema", "json_object", "text"].includes(schema.type);
    return isWhole ? schema : { type: "json_schema", json_schema: { name: "answer", schema } };
  }

  function build() {
    const system = fields.system.value;
    const messages = allTurns().map(message);
    if (!messages.length) throw new FieldProblem(byId("add-user"), "The conversation has no turn.");
    const last = allTurns().at(-1);
    if (last.role_ === "user" && !textOf(last).value) throw new FieldProblem(textOf(last), "The last turn is empty.");
    if (system) messages.unshift({ role: "system", content: system });
    const request = { model: fields.model.value || undefined, messages };
    for (const name of NUMBERS) {
      const text = fields[name].value.trim();
      if (text) request[name] = number(text);
    }
    Object.assign(request, {
      reasoning_effort: fields.reasoning_effort.value || undefined,
      stop: readStops(),
      tools: parsed("tools", Array.isArray, "a JSON list"),
      tool_choice: readChoice(),
      response_format: readFormat(),
      private: fields.private.checked || undefined,
      stream: fields.stream.checked || undefined,
    }, parsed("more", isObject, "a JSON object"));
    if (!TENANT.test(fields.tenant.value)) {
      throw new FieldProblem(fields.tenant, "tenant is not 1 to 64 of letters, digits, '_' and '-'");
    }
    const whole = JSON.parse(JSON.stringify(request));
    const length = JSON.stringify(whole).length;
    if (length > MOST_SENT) throw new FieldProblem(fields.system, `The request has ${length} characters, more than ${MOST_SENT}.`);
    return whole;
  }

  // Messages.

  function say(text, isProblem = false) {
    said.textContent = text;
    said.hidden = !text;
    said.classList.toggle("problem", isProblem);
  }

  function mark(field) {
    field.closest("details")?.setAttribute("open", "");
    field.setAttribute("aria-invalid", "true");
    field.focus();
  }

  function attempt(make) {
    try {
      return make();
    } catch (problem) {
      if (!(problem instanceof FieldProblem)) throw problem;
      say(problem.message, true);
      mark(problem.field);
      return null;
    }
  }

  // The field of the page for the `param` of an error, such as messages[1].content or tools[0].function.name.
  function fieldOf(param) {
    const [, name, place] = /^([a-z_]+)(?:[[.](\d+))?/.exec(param ?? "") ?? [];
    if (name === "messages" && place !== undefined) {
      const at = Number(place) - (fields.system.value ? 1 : 0);
      return at < 0 ? fields.system : textOf(turns.children[at] ?? turns.lastElementChild);
    }
    const field = name && fields.namedItem(name);
    return field || (name && fields.more.value.includes(name) ? fields.more : null);
  }

  function sayRefusal(body, status) {
    const error = body?.error ?? { message: `the door answered ${status}` };
    const hint = body?.retry_hint_ms;
    const at = hint ? ` Come back at ${new Date(Date.now() + hint).toLocaleTimeString()}.` : "";
    const reason = body?.reason ? `Refused (${body.reason}): ` : "";
    say(`${reason}${error.message}.${at}`, true);
    const field = fieldOf(error.param);
    if (field) mark(field);
  }

  // The first answer becomes the turn after the last one that was sent; others stay where they are. A call without its
  // end cannot be sent again.
  function keep(answer, isWhole, after) {
    const { first } = answer;
    const calls = first && isWhole && !first.isCut && first.calls.length ? first.calls.filter(Boolean) : null;
    const kept = first && addTurn("assistant", { text: first.content, calls, reasoning: first.reasoning, after });
    if (kept) {
      answer.removeFirst();
      let last = kept;
      for (const call of calls ?? []) last = addTurn("tool", { call, after: last }) ?? last;
      if (!calls && !kept.nextElementSibling) addTurn("user");
    }
    if (answer.isCut) say("The answer is too long for this page, which has only its beginning. The job's page has all of it.");
  }

  class Run {
    constructor(request) {
      this.request = request;
      this.controller = new AbortController();
      this.job = "";
      this.isStopped = this.isEnded = false;
    }

    async send(answer) {
      const text = JSON.stringify(this.request);
      const query = new URLSearchParams({ tenant: fields.tenant.value });
      const again = refused?.text === text ? refused : null;
      refused = null;
      const headers = { "Content-Type": "application/json", "X-Console-Token": token, ...again?.headers };
      const got = await fetch(`/console/playground/answer?${query}`, { method: "POST", headers, body: text, signal: this.controller.signal });
      if (!got.ok) {
        const body = await got.json().catch(() => null);
        if (body?.return_ticket) refused = { text, headers: { "X-Penstock-Return-Ticket": body.return_ticket } };
        sayRefusal(body, got.status);
        return;
      }
      const ignored = got.headers.get("x-penstock-ignored");
      if (ignored) say(`Without effect on the answer: ${ignored}.`);
      for await (const [name, data] of eventsOf(got.body)) this.take(answer, name, data);
      if (!this.isEnded) this.sayBroken();
    }

    take(answer, name, data) {
      if (name === "job") {
        this.job = JSON.parse(data).id;
      } else if (name === "facts") {
        htmx.swap(byId("facts"), data, { swapStyle: "innerHTML", settleDelay: 0 });
      } else if (name === "message" && data !== "[DONE]") {
        const chunk = JSON.parse(data);
        if (chunk.error) this.fail(chunk);
        for (const choice of chunk.choices ?? []) {
          answer.add(choice.index, choice.delta ?? choice.message ?? {});
          this.isEnded ||= Boolean(choice.finish_reason);
        }
      }
    }

    fail(body) {
      this.isEnded = this.isFailed = true;
      if (this.isStopped && body.error.code === "job_canceled") say("Stopped: the job is canceled.");
      else sayRefusal(body);
    }

    sayBroken() {
      this.isFailed = true;
      const job = this.job ? ` The door cancels job ${this.job}.` : "";
      say(this.isStopped ? `Stopped.${job}` : `The connection broke before the end of the answer.${job}`, !this.isStopped);
    }

    async stop() {
      this.isStopped = true;
      say("Stopping …");
      setTimeout(() => this.controller.abort(), this.job ? STOP_MS : 0);
      if (!this.job) return;
      const headers = { "X-Console-Token": token };
      const done = await fetch("/console/cancel", { method: "POST", headers, body: new URLSearchParams({ job: this.job }) }).catch(() => null);
      if (!done?.ok) this.controller.abort();
    }
  }

  async function send() {
    if (running) return;
    say("");
    for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
    const request = attempt(build);
    if (!request) return;
    sent = request;
    running = new Run(request);
    byId("facts").replaceChildren();
    form.setAttribute("aria-busy", "true");
    byId("send").disabled = true;
    byId("stop-answer").disabled = false;
    const answer = new Answer();
    const lastSent = allTurns().at(-1);
    try {
      await running.send(answer);
    } catch (problem) {
      if (!(problem instanceof TypeError || problem.name === "AbortError")) console.error(problem);
      running.sayBroken();
    } finally {
      keep(answer, running.isEnded && !running.isFailed, lastSent);
      const hadFocus = document.activeElement === byId("stop-answer") || document.activeElement === document.body;
      running = null;
      form.removeAttribute("aria-busy");
      byId("send").disabled = false;
      byId("stop-answer").disabled = true;
      showCode();
      const last = allTurns().at(-1);
      if (hadFocus && last && !textOf(last).value) textOf(last).focus();
    }
  }

  // The code.

  function showCode() {
    if (!byId("code").open) return;
    const request = sent ?? attempt(build);
    if (!request) return;
    const base = `${location.origin.replaceAll("'", "%27")}/v1`;
    const tenant = fields.tenant.value === form.dataset.tenant ? "" : fields.tenant.value;
    const place = { base, tenant, usesKeys: "keys" in form.dataset };
    byId("curl").textContent = playgroundCode.curl(request, place);
    byId("python").textContent = playgroundCode.python(request, place);
  }

  function changed() {
    sent = null;
    if (byId("code").open) {
      byId("curl").textContent = byId("python").textContent = "";
    }
  }

  function isBusy() {
    if (running) say("An answer is awaited: stop it first.", true);
    return Boolean(running);
  }

  function act(turn, what) {
    if (isBusy()) return;
    changed();
    if (what === "delete") {
      const next = turn.nextElementSibling ?? turn.previousElementSibling;
      turn.remove();
      (next ? textOf(next) : byId("add-user")).focus();
      return;
    }
    while (turns.lastElementChild !== turn) turns.lastElementChild.remove();
    byId("answer").replaceChildren();
    send();
  }

  form.addEventListener("submit", (event) => { event.preventDefault(); send(); });
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    send();
  });
  form.addEventListener("input", changed);
  turns.addEventListener("click", (event) => {
    const button = event.target.closest("[data-act]");
    if (button) act(button.closest("li"), button.dataset.act);
  });
  for (const role of ["user", "assistant"]) {
    byId(`add-${role}`).addEventListener("click", () => {
      changed();
      const turn = addTurn(role);
      if (turn) textOf(turn).focus();
    });
  }
  byId("clear").addEventListener("click", () => {
    if (isBusy()) return;
    changed();
    say("");
    byId("answer").replaceChildren();
    byId("facts").replaceChildren();
    turns.replaceChildren();
    fields.system.value = "";
    textOf(addTurn("user")).focus();
  });
  byId("stop-answer").addEventListener("click", () => running?.stop());
  byId("code").addEventListener("toggle", showCode);
  // Before the click that copies reaches the document.
  byId("code").addEventListener("click", (event) => { if (event.target.closest("[data-copy]")) showCode(); });
  // Firefox restores fields after a reload, which belong to another conversation.
  form.reset();
  textOf(addTurn("user")).focus({ preventScroll: true });
})();

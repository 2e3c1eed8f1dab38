// Shows an answer of the playground as it comes. Each part of it is shown as text, and bounded.
"use strict";

const playgroundAnswer = (() => {
  // The most characters of each part of an answer that are shown and kept.
  const MOST_SHOWN = 200_000;
  const MOST_CALLS = 64;

  // Text is always set as text: nothing of an answer is markup.
  function part(title, text) {
    const made = document.getElementById("part").content.firstElementChild.cloneNode(true);
    made.querySelector("summary").textContent = title;
    made.querySelector("pre").textContent = text;
    return made;
  }

  const emptyChoice = () => ({ content: "", reasoning: "", calls: [], isCut: false });

  // The shown parts of an answer, by choice: each has a text node, which grows.
  class Answer {
    constructor() {
      this.place = document.getElementById("answer");
      this.choices = [];
      this.nodes = new Map();
      this.place.replaceChildren();
      this.place.hidden = false;
    }

    // Each part that is shown has a name, which is its key among the nodes.
    show(index, key, title, text) {
      const id = `${index} ${key}`;
      if (!this.nodes.has(id)) {
        const made = title ? part(title, "") : Object.assign(document.createElement("div"), { className: "answer" });
        const node = document.createTextNode("");
        (made.querySelector("pre") ?? made).append(node);
        this.place.append(made);
        this.nodes.set(id, node);
      }
      this.nodes.get(id).appendData(text);
    }

    bounded(choice, have, text) {
      const kept = text.slice(0, Math.max(0, MOST_SHOWN - have.length));
      choice.isCut ||= kept.length < text.length;
      return kept;
    }

    // `delta` is one of a chunk, or a whole message.
    add(index, delta) {
      const choice = this.choices[index] ??= emptyChoice();
      const of = index ? `Answer ${index + 1}: ` : "";
      for (const [key, title, given] of [
        ["reasoning", `${of}Reasoning`, delta.reasoning_content ?? delta.reasoning],
        ["content", of && `${of}text`, delta.content],
      ]) {
        if (typeof given !== "string" || !given) continue;
        const text = this.bounded(choice, choice[key], given);
        choice[key] += text;
        this.show(index, key, title, text);
      }
      for (const [place, call] of (delta.tool_calls ?? []).entries()) this.addCall(index, choice, call.index ?? place, call);
    }

    addCall(index, choice, place, call) {
      if (!(place >= 0 && place < MOST_CALLS)) {
        choice.isCut = true;
        return;
      }
      const known = choice.calls[place] ??= { id: "", type: "function", function: { name: "", arguments: "" } };
      known.id ||= call.id ?? "";
      known.function.name ||= call.function?.name ?? "";
      const text = this.bounded(choice, known.function.arguments, call.function?.arguments ?? "");
      known.function.arguments += text;
      this.show(index, `call ${place}`, `Calls ${known.function.name}`, text);
    }

    // The first answer, if it has something that a turn can have.
    get first() {
      const first = this.choices[0];
      return first && (first.content || first.calls.length) ? first : null;
    }

    // Remove the first answer from its place, because it has become a turn.
    removeFirst() {
      for (const [id, node] of this.nodes) if (id.startsWith("0 ")) node.parentElement.closest("details, .answer").remove();
      this.place.hidden = !this.place.children.length;
    }

    get isCut() {
      return this.choices.some((choice) => choice?.isCut);
    }
  }

  // Yields the events of a stream as [name, data].
  async function* eventsOf(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "", got; !(got = await reader.read()).done;) {
      const frames = (rest + got.value).split("\n\n");
      rest = frames.pop();
      for (const frame of frames) {
        const lines = frame.split("\n");
        const name = lines.find((line) => line.startsWith("event: "))?.slice(7) ?? "message";
        const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
        if (data) yield [name, data];
      }
    }
  }

  return { Answer, eventsOf, part };
})();

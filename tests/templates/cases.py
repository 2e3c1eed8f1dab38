"""The conversations that every real template has to render, and the checks of the rendered text."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.answer_parts import Call, read_parts
from workers.engine.chat.call_reader import CallReader
from workers.engine.chat.chat_template import ChatTemplate
from workers.engine.chat.harmony import ASSISTANT, MARKS, START
from workers.engine.chat.harmony_reader import HarmonyReader
from workers.engine.chat.parameter_grammar import text_parameters
from workers.engine.chat.tool_formats import ToolFormat
from workers.engine.chat.tool_grammar import tool_constraint
from workers.engine.chat.tool_request import ToolRequest, read_tools
from workers.engine.events import JobRejected
from workers.engine.structured.compiler import GrammarCompiler

Message = dict[str, Any]

ASKED, RESULTS = "Where is it warm?", ["sunny and 21 degrees", "raining and 9 degrees"]
SYSTEM: Message = {"role": "system", "content": "Answer in one sentence."}
USER: Message = {"role": "user", "content": ASKED}
WORDS = " ".join(f"word{i}" for i in range(500))


def _tool(name: str, description: str) -> dict[str, Any]:
    properties = {
        "city": {"type": "string", "description": "The city"},
        "days": {"type": "integer", "description": "How many days"},
        "options": {"type": "object", "description": "More", "properties": {"units": {"enum": ["C", "F"]}}},
    }
    parameters = {"type": "object", "properties": properties, "required": ["city"]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = _tool("get_weather", "The weather in a city")
LONG = _tool("get_forecast", WORDS)
BARE: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
ARGUMENTS: list[dict[str, Any]] = [
    {"city": "Paris", "days": 2, "options": {"units": "C"}},
    {"city": 'The "old" town\nby the sea', "days": 3, "options": {}},
]


def _history(n_calls: int, content: str | None = None, arguments: Sequence[str] = ()) -> list[Message]:
    texts = arguments or [json.dumps(each) for each in ARGUMENTS[:n_calls]]
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": "get_weather", "arguments": text}}
        for i, text in enumerate(texts)
    ]
    results = [{"role": "tool", "tool_call_id": f"call_{i}", "content": RESULTS[i]} for i in range(n_calls)]
    return [USER, {"role": "assistant", "content": content, "tool_calls": calls}, *results]


@dataclass(frozen=True)
class Case:
    """A conversation, the texts that its prompt must contain, and the calls that must be read back from it."""

    name: str
    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    texts: tuple[str, ...] = (ASKED,)
    calls: int = 0


_NAMED = (ASKED, "get_weather")
CASES = [
    Case("plain", [USER]),
    Case("system", [SYSTEM, USER], texts=(ASKED, SYSTEM["content"])),
    Case("turns", [USER, {"role": "assistant", "content": "In Nice."}, USER], texts=(ASKED, "In Nice.")),
    Case("1 tool", [USER], [WEATHER], _NAMED),
    Case("2 tools and a system message", [SYSTEM, USER], [WEATHER, LONG], (*_NAMED, "get_forecast", SYSTEM["content"])),
    Case("500 words", [USER], [LONG], (ASKED, "get_forecast", WORDS)),
    Case("no description", [USER], [BARE, WEATHER], (*_NAMED, "now")),
    Case("a call", _history(1), [WEATHER], (*_NAMED, RESULTS[0]), calls=1),
    Case("a call with an empty content", _history(1, ""), [WEATHER], (*_NAMED, RESULTS[0]), calls=1),
    Case("a call beside a text", _history(1, "Let me see."), [WEATHER], (*_NAMED, "Let me see.", RESULTS[0]), calls=1),
    Case("two calls", _history(2), [WEATHER], (*_NAMED, *RESULTS), calls=2),
    Case("two calls and more", [*_history(2), USER], [WEATHER], (*_NAMED, *RESULTS), calls=2),
    Case("a call without tools", _history(1), [], (*_NAMED, RESULTS[0]), calls=1),
    Case("a call that was cut", _history(1, None, ['{"city": "Par']), [WEATHER], (*_NAMED, "Par", RESULTS[0])),
    Case("a call with a list", _history(1, None, ["[7001]"]), [WEATHER], (*_NAMED, "7001", RESULTS[0])),
]
#: The text that a template shows for a value that it does not know.
_NO_VALUE = re.compile(r"\b(None|null|undefined)\b")


def faults(case: Case, template: ChatTemplate) -> str:
    """Return what is wrong with the prompt of a case; "" if it is right."""
    try:
        prompt = "".join(template.pieces(case.messages, None, case.tools))
    except JobRejected as rejected:
        return str(rejected)
    plain = prompt.replace("\\n", "\n").replace('\\"', '"')
    missing = [text for text in case.texts if text not in prompt and text not in plain]
    if missing:
        return f"{missing[0][:40]!r} is missing"
    shown = prompt.partition(ASKED)[2]
    if case.calls and _NO_VALUE.search(shown.replace('"is_error": null', "")):
        return "a content of null is shown"
    expected = [Call("get_weather", json.dumps(each, ensure_ascii=False)) for each in ARGUMENTS[: case.calls]]
    if case.calls and _read(template.traits.form, shown, case.calls) != expected:
        return f"the calls are not read back: {shown[:300]!r}"
    return ""


def _read(form: ToolFormat, shown: str, n_calls: int) -> list[Call]:
    """Return the calls in a rendered text; each may be followed by its result."""
    calls: list[Call] = []
    for result in RESULTS[:n_calls]:
        part, _, shown = shown.partition(result)
        if form.in_channels:
            harmony = HarmonyReader({mark: mark for mark in MARKS}, calls=True)
            calls += read_parts(harmony.feed(part[part.find(START + ASSISTANT) :])).calls
        elif form.begin in part:
            reader = CallReader(form, {"get_weather": {"city"}})
            calls += read_parts(reader.feed(part[part.index(form.begin) :])).calls
    return calls


#: A request to the model: its fields, and how many calls its answer has.
_CHOICES: dict[str, tuple[dict[str, Any], int]] = {
    "auto": ({}, 2),
    "required": ({"tool_choice": "required"}, 2),
    "named": ({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}, 1),
}
_END_OF_ANSWER = 256


def grammar_faults(form: ToolFormat, compiler: GrammarCompiler) -> dict[str, str]:
    """Return for each choice of a tool why the grammar of this form, or its reader, is wrong; {} if all is right.

    `compiler` has a vocabulary of bytes. The grammar must allow what a model of this form writes.
    """
    found = {}
    for choice, (fields, n_calls) in _CHOICES.items():
        tools = read_tools({"messages": [USER], "tools": [WEATHER, LONG], **fields})
        assert tools is not None
        calls = [("get_weather", json.dumps(each)) for each in ARGUMENTS[: n_calls if form.again else 1]]
        said = "" if choice != "auto" or form.only_first or form.in_channels else "Let me see."
        fault = _grammar_fault(form, compiler, tools, said + form.write(calls))
        if fault:
            found[choice] = fault
    return found


def _grammar_fault(form: ToolFormat, compiler: GrammarCompiler, tools: ToolRequest, answer: str) -> str:
    matcher = compiler.compile(tool_constraint(tools, form, {}, max_bytes=65_536), "tenant").start()
    for at, byte in enumerate(answer.encode()):
        if not matcher.allows(byte):
            return f"the grammar does not allow {answer.encode()[at:][:40]!r} after {answer.encode()[:at][-40:]!r}"
        matcher.accept(byte)
    if not matcher.ended and not matcher.allows(_END_OF_ANSWER):
        return "the answer cannot end after its calls"
    texts: Mapping[str, frozenset[str]] = text_parameters(tools) if form.parameters else {}
    reader = HarmonyReader({mark: mark for mark in MARKS}, calls=True) if form.in_channels else CallReader(form, texts)
    read = read_parts(reader.feed(answer) + reader.finish())
    expected = [json.loads(arguments) for arguments in map(json.dumps, ARGUMENTS[: len(read.calls)])]
    if not read.calls or [json.loads(call.arguments) for call in read.calls] != expected:
        return f"the calls are not read back: {read.calls}"
    return ""

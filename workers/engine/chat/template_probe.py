"""Finds out what a chat template does with tools, by rendering conversations with made-up names."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from shared.answer_parts import AnswerParts, read_parts
from workers.engine.chat.call_reader import CallReader
from workers.engine.chat.harmony import ASSISTANT, FINAL, MARKS, START
from workers.engine.chat.harmony_reader import HarmonyReader
from workers.engine.chat.tool_formats import ALL, HARMONY, HERMES, ToolFormat

Messages = list[dict[str, Any]]
#: Renders messages with tools up to the beginning of the answer. May raise anything.
Render = Callable[[Messages, Sequence[Mapping[str, Any]]], str]

_TOOL, _TEXT, _NUMBER, _MAP = "zq_tool", "zq_text", "zq_number", "zq_map"
_SYSTEM, _ASKED, _SAID = "zqsystem", "zqasked", "zqsaid"
_VALUES = ["zqvalue0", "zqvalue1"]
#: The text has characters that some templates write in another way.
_ARGUMENTS = [{_TEXT: f'{_VALUES[i]} <"é" &\nzq>', _NUMBER: 70 + i, _MAP: {"zq_inner": [1, 2]}} for i in range(2)]
_RESULTS = ["zqresult0", "zqresult1"]
_PROPERTIES = {
    _TEXT: {"type": "string", "description": "a text"},
    _NUMBER: {"type": "integer", "description": "a number"},
    _MAP: {"type": "object", "description": "a map"},
}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": "a tool",
            "parameters": {"type": "object", "properties": _PROPERTIES, "required": [_TEXT]},
        },
    }
]
#: Marks before a call at the beginning of an answer: the templates of Llama 4 show some around an empty text.
_MARKS = re.compile(r"(\s|<\|[^|<>]*\|>)*")
#: Whether arguments are given as a text, and whether their values are.
_ARGUMENT_KINDS = ((False, False), (True, False), (False, True))
#: Ids of calls: of any length, and of nine letters and digits.
_IDS = {False: ["call_zq_000000", "call_zq_000001"], True: ["zqcall000", "zqcall001"]}


@dataclass(frozen=True)
class Traits:
    """A template's treatment of tools. The defaults are those of a template that knows none."""

    #: The form in which the model calls tools, and is told to if the template shows no tools.
    form: ToolFormat = HERMES
    #: Whether the template tells the model which tools there are.
    shows_tools: bool = False
    #: Whether the template shows calls of earlier messages, in `form`, and their results.
    shows_calls: bool = False
    #: Whether it takes a call's arguments as text, and not as an object.
    text_arguments: bool = False
    #: Whether it takes the values of arguments as JSON, because it would show objects and lists in Python's notation.
    json_values: bool = False
    #: Whether the content of a message that only calls tools has to be null, and not "".
    null_content: bool = False
    #: Whether ids of calls must have nine letters and digits.
    short_ids: bool = False
    #: Whether a message can have only one call.
    one_call_each: bool = False
    #: Whether a message with calls can have a text before them.
    text_beside_calls: bool = True
    #: Whether there can be a system message.
    system: bool = True

    def given(self, arguments: Mapping[str, Any]) -> Any:
        if self.json_values:
            return {name: value if isinstance(value, str) else _dumped(value) for name, value in arguments.items()}
        return _dumped(arguments) if self.text_arguments else arguments


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def traits_of(render: Render) -> Traits:
    """Return the template's treatment of tools. A form that cannot be read back counts as unknown."""
    asked = {"role": "user", "content": _ASKED}
    base = Traits(
        form=HARMONY if _answers_in_channels(render) else HERMES,
        system=_in_order(_tried(render, [{"role": "system", "content": _SYSTEM}, asked], []), _SYSTEM, _ASKED),
        shows_tools=_TOOL in _tried(render, [asked], _TOOLS),
    )
    for (text_arguments, json_values), short_ids in product(_ARGUMENT_KINDS, (False, True)):
        found = []
        own = replace(base, text_arguments=text_arguments, json_values=json_values, short_ids=short_ids)
        for null_content in (False, True):
            traits = replace(own, null_content=null_content)
            shown = _shown(render, traits, 1)
            forms = [form for form in _candidates(base) if _reads_back(form, shown, 1)]
            if forms:
                found.append((len(shown), replace(traits, form=forms[0], shows_calls=True)))
        if found:
            # Of "" and null, the one that a template does not know is shown as an empty turn, or as a word.
            return _with_more(render, min(found, key=lambda each: each[0])[1])
    # Tools in a form that is not known here would contradict the form that the answer is held to.
    return replace(base, shows_tools=base.shows_tools and base.form.in_channels, shows_calls=base.form.in_channels)


def _with_more(render: Render, traits: Traits) -> Traits:
    """Return the traits with those of a message with a text beside its calls, or with two calls."""
    beside = _shown(render, traits, 1, _SAID)
    if not _reads_back(traits.form, beside.partition(_SAID)[2], 1):
        traits = replace(traits, text_beside_calls=False)
    if _reads_back(traits.form, _shown(render, traits, 2), 2):
        return traits
    each = _shown(render, replace(traits, one_call_each=True), 2)
    first, _, second = each.partition(_RESULTS[0])
    if _reads_back(traits.form, first, 1) and _VALUES[1] in second:
        return replace(traits, one_call_each=True)
    return traits


def _candidates(base: Traits) -> Sequence[ToolFormat]:
    return [HARMONY] if base.form.in_channels else ALL


def _answers_in_channels(render: Render) -> bool:
    asked, said = {"role": "user", "content": _ASKED}, {"role": "assistant", "content": _SAID}
    return START + ASSISTANT + FINAL + _SAID in _tried(render, [asked, said, asked], [])


def _shown(render: Render, traits: Traits, n_calls: int, said: str = "") -> str:
    """Return the template's text of calls, up to the last result; "" if it does not show all.

    If the prompt without the calls is the beginning of the prompt with them, what follows it is returned.
    """
    ids = _IDS[traits.short_ids]
    calls = [
        {"id": ids[i], "type": "function", "function": {"name": _TOOL, "arguments": traits.given(_ARGUMENTS[i])}}
        for i in range(n_calls)
    ]
    results = [{"role": "tool", "tool_call_id": ids[i], "content": _RESULTS[i]} for i in range(n_calls)]
    content = said or (None if traits.null_content else "")
    called: Messages = [{"role": "assistant", "content": content, "tool_calls": calls}, *results]
    if traits.one_call_each:
        called = []
        for call, result in zip(calls, results, strict=True):
            called += [{"role": "assistant", "content": content, "tool_calls": [call]}, result]
    asked = {"role": "user", "content": _ASKED}
    tools = _TOOLS if traits.shows_tools else []
    text = _tried(render, [asked, *called], tools)
    if not _in_order(text, _ASKED, *([said] if said else []), *_RESULTS[:n_calls]):
        return ""
    shown = text[: text.rindex(_RESULTS[n_calls - 1])]
    begun = _tried(render, [asked], tools)
    return shown[len(begun) :] if begun and shown.startswith(begun) else shown.rpartition(_ASKED)[2]


def _reads_back(form: ToolFormat, shown: str, n_calls: int) -> bool:
    read = _read(form, shown)
    try:
        arguments = [json.loads(call.arguments) for call in read.calls]
    except ValueError:
        return False
    return [call.name for call in read.calls] == [_TOOL] * n_calls and arguments == _ARGUMENTS[:n_calls]


def _read(form: ToolFormat, shown: str) -> AnswerParts:
    if form.in_channels:
        harmony = HarmonyReader({mark: mark for mark in MARKS}, calls=True)
        return read_parts(harmony.feed(shown) + harmony.finish())
    reader = CallReader(form, {_TOOL: {_TEXT}})
    begin = _MARKS.sub("", shown, count=1) if form.only_first else shown[max(0, shown.find(form.begin)) :]
    return read_parts(reader.feed(begin) + reader.finish())


def _in_order(text: str, *words: str) -> bool:
    places = [text.find(word) for word in words]
    return -1 not in places and places == sorted(places)


def _tried(render: Render, messages: Messages, tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the prompt, "" if the template does not accept the messages."""
    try:
        return render(messages, tools)
    except Exception:  # noqa: BLE001 - the template is untrusted and may raise anything
        return ""

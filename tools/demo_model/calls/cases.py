"""Makes a tool from a skill, and a request for it with the call, the result and the answer."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from tools.demo_model.calls.skill import N_UNSEEN_REQUESTS, Result, Skill
from tools.demo_model.calls.values import WORDS, Value, a_value, words
from tools.demo_model.chats import said
from tools.demo_model.stories import made_up_word, upper_first

#: Slots with numbers, and the type of their parameters.
_TYPES = {"number": "integer", "minutes": "integer", "count": "integer", "code": "integer", "price": "number"}
_SLOT = re.compile(r"{(\w+)}")
#: The share of results that are JSON with any fields, and the share that are a sentence.
_FIELDS_SHARE, _SENTENCE_SHARE = 0.2, 0.1
_FIELDS = words(
    "name price age size weight color speed status level rating number distance length count state time place date "
    "result value total owner height"
)


@dataclass(frozen=True)
class Tool:
    """One wording of a skill. `parameter_names` maps the slots of the skill's requests to the tool's parameters."""

    skill: Skill
    name: str
    description: str
    parameter_names: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """Return the tool as a client of the chat API sends it."""
        properties = {name: _schema(slot) for slot, name in self.parameter_names.items()}
        required = [name for slot, name in self.parameter_names.items() if slot not in self.skill.optional]
        parameters = {"type": "object", "properties": properties, "required": required}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class Case:
    """A request for a tool, the arguments of its call, the tool's result, and the answer that follows."""

    tool: Tool
    request: str
    arguments: Mapping[str, Value]
    result: str
    answer: str


def a_tool(rng: Random, skill: Skill) -> Tool:
    """Return a tool with the skill, in one of its wordings. A parameter that may be left out is not always there."""
    slots = [slot for slot in skill.parameters if slot not in skill.optional or rng.random() < 0.5]
    names: dict[str, str] = {}
    for slot in slots:
        names[slot] = rng.choice([name for name in skill.parameters[slot] if name not in names.values()])
    return Tool(skill, rng.choice(skill.names), rng.choice(skill.descriptions), names)


def a_case(rng: Random, tool: Tool, *, unseen: bool = False) -> Case:
    """Return a request for the tool. With `unseen`, training has neither its wording nor its values."""
    skill = tool.skill
    requests = skill.requests[-N_UNSEEN_REQUESTS:] if unseen else skill.requests[:-N_UNSEEN_REQUESTS]
    missing = set(skill.parameters) - set(tool.parameter_names)
    request = rng.choice([request for request in requests if not missing & _slots_in(request)])
    result, answer = rng.choice(skill.results)
    result_texts = [result] if isinstance(result, str) else result.values()
    values = _values(rng, [request, *result_texts, answer], unseen=unseen)
    arguments = {name: values[slot] for slot, name in tool.parameter_names.items() if slot in _slots_in(request)}
    returned, answered = _result(rng, result, answer, values)
    return Case(tool, said(rng, request.format_map(values)), arguments, returned, answered)


def _slots_in(text: str) -> set[str]:
    return set(_SLOT.findall(text))


def _values(rng: Random, texts: Iterable[str], *, unseen: bool) -> dict[str, Value]:
    """Return values for all slots in the texts. Two slots of one kind have different values."""
    values: dict[str, Value] = {}
    for slot in dict.fromkeys(slot for text in texts for slot in _SLOT.findall(text)):
        while (value := a_value(rng, slot, unseen=unseen)) in values.values():
            pass
        values[slot] = value
    return values


def _result(rng: Random, result: Result, answer: str, values: Mapping[str, Value]) -> tuple[str, str]:
    """Return what the tool returns and the answer: those of the skill, fields of any meaning, or a sentence."""
    kind = rng.random()
    if kind < _FIELDS_SHARE:
        return _any_fields(rng)
    if kind < _FIELDS_SHARE + _SENTENCE_SHARE:
        sentence = f"The {rng.choice(_FIELDS)} is {_any_value(rng)}."
        return sentence, sentence
    if isinstance(result, str):
        return result.format_map(values), answer.format_map(values)
    fields = {name: _filled(text, values) for name, text in result.items()}
    return json.dumps(fields, ensure_ascii=False), answer.format_map(values)


def _any_fields(rng: Random) -> tuple[str, str]:
    """Return a JSON object with one to three fields, and a sentence that names them all."""
    names = rng.sample(_FIELDS, rng.choice((1, 2, 2, 3)))
    if rng.random() < 0.3:
        names[0] = made_up_word(rng, 2)
    fields = {name: _any_value(rng) for name in names}
    told = [f"the {name} is {value}" for name, value in fields.items()]
    sentence = told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"
    return json.dumps(fields), f"{upper_first(sentence)}."


def _any_value(rng: Random) -> Value:
    return a_value(rng, rng.choice(("number", "code", "price", "odd", "name", "state", "ticket", "clock", "city")))


def _filled(text: str, values: Mapping[str, Value]) -> Value:
    """Return the value of the only slot of a text, so that a number stays one, or else the text with its values."""
    match = _SLOT.fullmatch(text)
    return values[match[1]] if match else text.format_map(values)


def _schema(slot: str) -> dict[str, Any]:
    kind = slot.rstrip("0123456789")
    schema: dict[str, Any] = {"type": _TYPES.get(kind, "string")}
    return schema | ({"enum": list(WORDS["unit"])} if kind == "unit" else {})

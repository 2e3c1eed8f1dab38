"""Requests with tools of random schemas, and whether the calls of an answer fit them."""

from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import jsonschema_rs

from shared.answer_parts import read_parts
from tests.support.fits_schema import assert_fits
from tests.support.tool_templates import a_tool
from tools.demo_model.calls.conversations import a_question
from workers.engine.events import Ended

Schema = dict[str, Any]
#: How the calls of an answer are: `valid` if all fit, `cut` if they fit and `max_tokens` ended the answer, perhaps
#: inside another call, `text` if the answer calls nothing, which it may if the choice is `auto`, and `failed` if it was
#: ended because its grammar took too long.
Verdict = Literal["valid", "cut", "text", "failed", "invalid"]

#: Names that JSON escapes, or that could be mistaken for one another or for keywords.
_NAMES = ("city", "a", "a-b", "a b", 'q"x', "back\\slash", "two\nlines", "é水", "string", "type", "name", "arguments")
_VALUES = ('x"y', "\\", "\n", "é", "\u2028", 1, -2.5, None, True, [1, {"a": "\t"}], "C", "F", "</tool_call>")
_PATTERNS = (r"^[a-c]{1,3}$", r"^.{0,4}$", r"^(a|b\d)+$", r'^"x\\?$', r"^\w+@\w+$", r"^\d{4}-\d{2}$", r"^$", r"[0-9]")
_FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email")
_CHOICES = ("required", "required", "named", "auto")
#: The most tokens of an answer. Some texts have no limit, so some answers are cut.
_MAX_TOKENS = 200


@dataclass(frozen=True)
class Request:
    """A chat with tools. `schemas` are those of the arguments, by the tools' names."""

    payload: dict[str, Any]
    schemas: dict[str, Schema]


def random_request(rng: Random) -> Request:
    """Return a chat in which one to three tools of random schemas may be called."""
    names = rng.sample(("get_weather", "f", "a-b", "search_the_web", "X_1"), rng.randint(1, 3))
    tools = [a_tool(name) for name in names]
    for tool in tools:
        tool["function"]["parameters"] = _parameters(rng)
    choice: Any = rng.choice(_CHOICES)
    if choice == "named":
        choice = {"type": "function", "function": {"name": rng.choice(names)}}
    payload = {
        "messages": [{"role": "user", "content": a_question(rng).case.request}],
        "tools": tools,
        "tool_choice": choice,
        "max_tokens": _MAX_TOKENS,
        "temperature": rng.choice((0.0, 1.0, 1.5)),
        "seed": rng.randrange(2**31),
    } | ({} if rng.random() < 0.2 else {"parallel_tool_calls": False})
    return Request(payload, {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools})


def verdict(request: Request, ended: Ended) -> tuple[Verdict, str]:
    """Return how the calls of an answer are, and what is wrong with it."""
    if ended.outcome != "succeeded":
        return ("failed" if ended.message.startswith("GrammarSlow") else "invalid"), ended.message
    choice, calls = request.payload["tool_choice"], read_parts(ended.text).calls
    is_cut = ended.finish_reason == "length"
    for call in calls[: -1 if is_cut else None]:
        try:
            assert_fits(request.schemas[call.name], call.arguments)
        except (KeyError, ValueError, jsonschema_rs.ValidationError) as error:
            return "invalid", f"{call.name}{call.arguments}: {error}"
        if isinstance(choice, dict) and call.name != choice["function"]["name"]:
            return "invalid", f"{call.name} was called instead of {choice['function']['name']}"
    if len(calls) > 1 and (isinstance(choice, dict) or "parallel_tool_calls" in request.payload):
        return "invalid", f"{len(calls)} calls"
    if is_cut:
        return "cut", ""
    return ("valid", "") if calls else ("text", "") if choice == "auto" else ("invalid", "no call")


def _parameters(rng: Random) -> Schema:
    schema = _object(rng, rng.randint(1, 3))
    if rng.random() < 0.25:
        leaf = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
        schema["$defs"] = {"node": leaf | {"required": ["next"], "additionalProperties": False}}
        schema["properties"]["node"] = {"$ref": "#/$defs/node"}
    return schema


def _object(rng: Random, depth: int) -> Schema:
    names = rng.sample(_NAMES, rng.randint(1, 3))
    schema: Schema = {"type": "object", "properties": {name: _schema(rng, depth - 1) for name in names}}
    schema["required"] = sorted(rng.sample(names, rng.randint(0, len(names))))
    return schema | ({"additionalProperties": False} if rng.random() < 0.85 else {})


def _schema(rng: Random, depth: int) -> Schema:
    if depth <= 0 or rng.random() < 0.5:
        return _leaf(rng)
    kind = rng.randrange(4)
    if kind == 0:
        return _object(rng, depth)
    if kind == 1:
        least = rng.randint(0, 2)
        return {"type": "array", "items": _schema(rng, depth - 1), "minItems": least, "maxItems": least + 2}
    if kind == 2:
        return {"type": "array", "prefixItems": [_leaf(rng), _schema(rng, depth - 1)], "items": False, "minItems": 2}
    return {"anyOf": [_schema(rng, depth - 1) for _ in range(rng.randint(2, 3))]}


def _leaf(rng: Random) -> Schema:
    least = rng.randint(-300, 300)
    leaves: tuple[Schema, ...] = (
        {"type": rng.choice(("boolean", "boolean", "null", "null", "integer", "number"))},
        {"type": "integer", "minimum": least, "maximum": least + rng.randint(0, 5_000)},
        {"type": "integer", "multipleOf": rng.randint(2, 12), "minimum": 0, "maximum": 100},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "string", "maxLength": rng.randint(0, 20)},
        {"type": "string", "minLength": 2}
        if rng.random() < 0.2
        else {"type": "string", "maxLength": 9, "minLength": 2},
        {"type": "string", "pattern": rng.choice(_PATTERNS), "maxLength": 12},
        {"type": "string", "format": rng.choice(_FORMATS)},
        {"enum": rng.sample(_VALUES, rng.randint(1, 4))},
        {"const": rng.choice(_VALUES)},
        {"type": ["integer", "null"], "minimum": -3, "maximum": 11},
        {"type": ["string", "null"], "maxLength": 3, "description": "short"},
    )
    return rng.choice(leaves)

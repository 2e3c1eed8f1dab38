"""Builds the grammar of a call whose arguments are written one by one, each between marks."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from workers.engine.chat.grammar_writer import ANY, GrammarWriter
from workers.engine.chat.tool_formats import Parameters
from workers.engine.chat.tool_request import ToolRequest
from workers.engine.structured.constraint import Subject, unusable

#: Keywords that describe a value for the model and restrict nothing. The model reads them in its prompt.
ANNOTATIONS = frozenset({"$comment", "default", "description", "examples", "title"})
#: The keywords of a schema whose texts are written as they are. With others, such as `pattern`, they are JSON.
_OF_TEXTS = ANNOTATIONS | {"type", "enum", "const", "minLength", "maxLength"}
#: The keywords of an object that can be divided into its properties.
_OF_OBJECTS = ANNOTATIONS | {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
_OF_OBJECTS |= {"$schema", "$id", "x-guidance"}
#: A longer text is JSON, because a pattern that counts characters grows with their number.
_MAX_LENGTH = 1000
#: How many characters the values of one tool may have. Each parameter with a reference repeats all definitions.
_MAX_CHARACTERS = 200_000
#: The name of an argument that the schema does not list.
_OTHER = "[a-zA-Z0-9_.-]{1,64}"


def text_parameters(request: ToolRequest) -> dict[str, frozenset[str]]:
    """Return for each tool the parameters whose values are written as they are, because they can only be texts."""
    found = {}
    for function in request.callable_functions:
        root = function.get("parameters")
        properties = _resolved(root).get("properties") if isinstance(root, Mapping) else None
        each = properties.items() if isinstance(properties, Mapping) else ()
        found[function["name"]] = frozenset(name for name, schema in each if _is_text(schema))
    return found


def parameter_rules(
    form: Parameters,
    writer: GrammarWriter,
    name: str,
    tool: tuple[str, Mapping[str, Any]],
    texts: frozenset[str],
    with_space: Callable[[dict[str, Any]], str],
) -> list[str]:
    """Return the rule `name` for the arguments of a tool, and those that it needs.

    `tool` is the tool's name with its schema, and `texts` are the parameters that are written as texts. Raises
    JobRejected if the schema cannot be divided into parameters, or if they are too long together.
    """
    schema = _resolved(tool[1])
    more = sorted(schema.keys() - _OF_OBJECTS)
    if more:
        raise unusable(f"the keyword {more[0]} is not supported for this model", Subject(_of(tool[0]), "tools"))
    properties = {key: each for key, each in (schema.get("properties") or {}).items() if each is not False}
    required = [key for key in schema.get("required") or () if isinstance(key, str)]
    properties |= {key: {} for key in required if key not in properties}
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    order, rules = [], []
    n_characters = 0
    for i, (key, each) in enumerate(properties.items()):
        rule = f"{name}_{i}"
        if key in texts:
            value, text_rules = _text(form, writer, rule, each)
            rules += text_rules
        else:
            value = f"{_json(each, shared, with_space)} {writer.terms(form.after)}"
        rules.append(f"{rule}: {writer.terms(form.before + key + form.between)} {value}")
        order.append(rule if key in required else f"{rule}?")
        n_characters += len(value)
        if n_characters > _MAX_CHARACTERS:
            raise unusable("its parameters share too many definitions for this model", Subject(_of(tool[0]), "tools"))
    others = schema.get("additionalProperties", False)
    if others is not False:
        known = "".join(f" & ~{_quoted(key)}" for key in properties)
        value = f"{_json(others, shared, with_space)} {writer.terms(form.after)}"
        rules += [
            f"{name}_other: {writer.terms(form.before)} {name.upper()}_OTHER {writer.terms(form.between)} {value}",
            f"{name.upper()}_OTHER: /{_OTHER}/{known}",
        ]
        order.append(f"{name}_other*")
    return [f"{name}: {' '.join(order)}", *rules]


def _of(tool: str) -> str:
    return f"the schema of the tool {tool!r}"


def _resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema to which a schema that is only a reference leads, with the definitions of the first one."""
    root = schema
    for _ in range(8):
        found = re.fullmatch(r"#/(\$defs|definitions)/([^/]+)", str(schema.get("$ref", "")))
        group = root.get(found[1]) if found else None
        target = group.get(found[2]) if found and isinstance(group, Mapping) else None
        if not isinstance(target, Mapping):
            break
        schema = {**target, **{key: root[key] for key in ("$defs", "definitions") if key in root}}
    return schema


def _is_text(schema: object) -> bool:
    if not isinstance(schema, Mapping) or schema.get("type") != "string" or not schema.keys() <= _OF_TEXTS:
        return False
    lengths = [schema.get("minLength", 0), schema.get("maxLength", 0)]
    if not all(type(length) is int and 0 <= length <= _MAX_LENGTH for length in lengths):
        return False
    choices = _choices(schema)
    bounded = "minLength" in schema or "maxLength" in schema
    return choices is None or (not bounded and bool(choices) and all(isinstance(one, str) for one in choices))


def _choices(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    choices = schema.get("enum")
    return choices if isinstance(choices, list) else None


def _json(schema: Any, shared: Mapping[str, Any], with_space: Callable[[dict[str, Any]], str]) -> str:
    own = {} if schema is True else schema
    if isinstance(own, dict) and "$ref" in json.dumps(own):
        own = {**shared, **own}
    return f"%json {with_space(own) if isinstance(own, dict) else json.dumps(own)}"


def _text(form: Parameters, writer: GrammarWriter, rule: str, schema: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the terms for a text up to the mark after it, and the rules that they need."""
    after, choices = writer.terms(form.after), _choices(schema)
    if choices is not None:
        return f"({' | '.join(map(_quoted, choices))}) {after}", []
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    text = f"/(?s:.){{{least},{most}}}/"
    if writer.has_mark(form.after):
        # The mark is a control token, which no text contains. Its characters would be read as the mark.
        return f"{rule.upper()}_TEXT {after}", [f"{rule.upper()}_TEXT: {text} & ~({ANY} {_quoted(form.after)} {ANY})"]
    # A lazy terminal ends with the first mark, so that the text does not contain it.
    once = f" & ~({ANY} {_quoted(form.after)} /(?s:.+)/)"
    return f"{rule}_text", [f"{rule}_text[lazy]: ({text} {_quoted(form.after)}){once}"]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)

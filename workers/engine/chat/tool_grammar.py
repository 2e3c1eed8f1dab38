"""Builds the grammar of an answer that may, or must, call tools: a text in llguidance's Lark format."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from shared.jobs.schema_keywords import nodes
from workers.engine.chat.grammar_writer import ANY, GrammarWriter
from workers.engine.chat.harmony_grammar import harmony_rules
from workers.engine.chat.parameter_grammar import ANNOTATIONS, parameter_rules, text_parameters
from workers.engine.chat.reasoning import BEGIN_MARK, END_MARK
from workers.engine.chat.tool_formats import ID, ToolFormat
from workers.engine.chat.tool_request import ToolRequest
from workers.engine.structured.constraint import JSON_SPACE, TOOLS, Constraint, Subject, schema_text, unusable

#: The schema of a tool that names no parameters.
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
#: With one of these keywords, properties may be defined elsewhere than under `properties`.
_OPEN = frozenset({"$ref", "additionalProperties", "allOf", "anyOf", "oneOf", "patternProperties"})

#: The white space that the readers of an answer skip (`str.isspace`).
_SPACES = r"[\s\x1c-\x1f]"


def tool_constraint(
    request: ToolRequest,
    form: ToolFormat,
    control_tokens: Mapping[str, int],
    *,
    max_bytes: int,
    content: Constraint | None = None,
    reasons: bool = False,
    began: bool = False,
    ignores_formats: bool = False,
) -> Constraint:
    """Return the grammar that an answer with these tools must match.

    `control_tokens` maps the names of the model's control tokens to their ids. Where the format has such a name, only
    the token is accepted, and not the same characters. Without `required`, the model writes any text until it begins a
    call, or a text that matches `content`. With `reasons`, it may reason before that, in any text up to the mark for
    the end; with `began`, the prompt has begun the reasoning, or a message in a channel. Raises JobRejected if a schema
    is not supported, or if the schemas together are longer than `max_bytes`.
    """
    writer = GrammarWriter(control_tokens)
    tools = _tools(request, max_bytes, ignores_formats=ignores_formats)
    parts = tuple((_subject(request, name), schema) for name, schema in tools)
    if form.in_channels:
        answer = "" if content is None else _content_schema(content)
        rules = harmony_rules(
            writer, tools, required=request.required, several=request.several, content=answer, began=began
        )
        return Constraint("tools", "\n".join(rules), writer.marks, parts)
    calls = _calls(form, writer, request, tools)
    anyone = " | ".join(f"tool_{i}" for i in range(len(tools)))
    # Each alternative is one lexeme as far as the form's end, which may begin with the same characters.
    again = " | ".join(_terms(writer, text) for text in dict.fromkeys((form.again, form.again.removeprefix("\n"))))
    more = f" (({again}) call)*" if form.again and request.several else ""
    body = f"calls: {_terms(writer, form.before)} call{more} {writer.terms(form.end)}"
    if request.required:
        start = [f"start: {writer.terms(form.begin)} calls"]
    elif content is not None:
        start = _content_start(form, writer, content)
    else:
        start = _free_start(form, writer, reasons=reasons, began=began)
    lines = [*start, body, f"call: {anyone}", *calls]
    return Constraint("tools", "\n".join(lines), writer.marks, parts)


def _calls(
    form: ToolFormat, writer: GrammarWriter, request: ToolRequest, tools: Sequence[tuple[str, str]]
) -> list[str]:
    """Return a rule for a call of each tool, from its name to the text after the arguments, and the rules it needs."""
    rules = [f"CALL_ID: /{form.id_pattern}/"] if ID in form.before + form.between + form.id_after else []
    after = writer.terms(form.after)
    if form.id_after:
        after = f"({_terms(writer, form.id_after)})? {after}"
    texts = {} if form.parameters is None else text_parameters(request)
    for i, (name, schema) in enumerate(tools):
        arguments = f"%json {schema}"
        if form.parameters is not None:
            arguments, own = f"arguments_{i}", (name, json.loads(schema))
            rules += parameter_rules(form.parameters, writer, arguments, own, texts[name], _with_space)
        rules.append(f"tool_{i}: {_terms(writer, name + form.between)} {arguments} {after}")
    return rules


def _terms(writer: GrammarWriter, text: str) -> str:
    """Return the terms for a text of the form, in which ID stands for the id of a call."""
    return " CALL_ID ".join(map(writer.terms, text.split(ID))) if ID in text else writer.terms(text)


def _tools(request: ToolRequest, max_bytes: int, *, ignores_formats: bool) -> list[tuple[str, str]]:
    """Return the name of each function that the answer may call, with the schema of its arguments."""
    functions = request.callable_functions
    tools = [
        (name, _schema(function, max_bytes, _subject(request, name), ignores_formats=ignores_formats))
        for function in functions
        for name in [function["name"]]
    ]
    n_bytes = sum(len(schema) for _, schema in tools)
    if n_bytes > max_bytes:
        raise unusable(f"they have {n_bytes} bytes, and PENSTOCK_MAX_SCHEMA_BYTES is {max_bytes}", TOOLS)
    return tools


def _content_start(form: ToolFormat, writer: GrammarWriter, content: Constraint) -> list[str]:
    return [f"start: answer | {writer.terms(form.begin)} calls", f"answer: %json {_content_schema(content)}"]


def _content_schema(content: Constraint) -> str:
    if content.kind != "json":
        raise unusable("with tools, it must be a JSON format")
    return _with_space(json.loads(content.text))


def _free_start(form: ToolFormat, writer: GrammarWriter, *, reasons: bool, began: bool) -> list[str]:
    """Return the rules for an answer that may reason, then be any text, and then call tools.

    A terminal takes as much text as it can. So text is only what does not begin the reasoning.
    """
    no_thought = f" & ~(/{_SPACES}*/ {json.dumps(BEGIN_MARK)} {ANY})" if reasons and not began else ""
    rest = _rest(form, writer, no_thought)
    if not reasons:
        return ["start: rest", *rest]
    thinking = _thinking(writer)
    if began:
        return ["start: thinking", *thinking, *rest]
    if writer.has_mark(BEGIN_MARK):
        opening = [f"start: rest | BEFORE? {writer.terms(BEGIN_MARK)} thinking", f"BEFORE: /{_SPACES}+/"]
    else:
        opening = ["start: rest | OPENING thinking", f"OPENING: /{_SPACES}*/ {json.dumps(BEGIN_MARK)}"]
    return [*opening, *thinking, *rest]


def _thinking(writer: GrammarWriter) -> list[str]:
    """Return the rules for reasoning that has begun, with all that follows. The answer may end inside it."""
    end = json.dumps(END_MARK)
    if writer.has_mark(END_MARK):
        thought = f"THOUGHT: {ANY} & ~({ANY} {end} {ANY})"
        return [f"thinking: THOUGHT | THOUGHT {writer.terms(END_MARK)} rest", thought]
    return ["thinking: THOUGHT | thought rest", f"THOUGHT: {ANY}", f"thought[lazy]: {ANY} {end}"]


def _rest(form: ToolFormat, writer: GrammarWriter, no_thought: str) -> list[str]:
    """Return the rules for text that may be followed by calls. `no_thought` excludes texts that begin the reasoning."""
    begin = writer.terms(form.begin)
    if form.only_first:
        first = re.escape(form.begin[0])
        other = rf"/{_SPACES}*([^\s\x1c-\x1f{first}](?s:.*))?/"
        return [f"rest: OTHER | SPACE? {begin} calls", f"OTHER: {other}{no_thought}", f"SPACE: /{_SPACES}{{1,8}}/"]
    if writer.has_mark(form.begin):
        no_characters = f" & ~({ANY} {json.dumps(form.begin, ensure_ascii=False)} {ANY})"
        return [f"rest: OTHER | OTHER {begin} calls", f"OTHER: {ANY}{no_characters}{no_thought}"]
    # A lazy terminal ends with the first `begin`, so that no other text can contain it.
    return ["rest: OTHER | begin calls", f"OTHER: {ANY}{no_thought}", f"begin[lazy]: ({ANY} {begin}){no_thought}"]


def _subject(request: ToolRequest, name: str) -> Subject:
    at = next(at for at, tool in enumerate(request.tools) if tool["function"]["name"] == name)
    param = f"tools[{at}].function.parameters"
    return Subject(f"{param} of {name!r}", param)


def _schema(function: Mapping[str, Any], max_bytes: int, subject: Subject, *, ignores_formats: bool) -> str:
    parameters = function.get("parameters") or _NO_PARAMETERS
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise unusable("it is no schema of an object", subject)
    try:
        own = json.loads(json.dumps(parameters))
    except RecursionError:
        raise unusable("it is nested too deeply", subject) from None
    for node, _ in nodes(own):
        for name in ANNOTATIONS.intersection(node):
            del node[name]
    strict = function.get("strict") is True
    own = json.loads(schema_text(own, max_bytes, subject, strict=strict, ignores_formats=ignores_formats))
    own["type"] = "object"
    if "properties" in own and not _OPEN.intersection(own):
        # A model that makes up parameters is of no use, and the schema allows to leave them out.
        own["additionalProperties"] = False
    return _with_space(own)


def _with_space(schema: dict[str, Any]) -> str:
    return json.dumps(schema | {"x-guidance": {"whitespace_pattern": JSON_SPACE}})

"""Tests of arguments that are written one by one: what the grammar allows is what the schema allows, read as JSON."""

import json
import re

import pytest

from shared.answer_parts import read_parts
from tests.support.tool_templates import template_of
from workers.engine.chat.call_reader import CallReader
from workers.engine.chat.chat_template import ChatTemplate
from workers.engine.chat.parameter_grammar import text_parameters
from workers.engine.chat.tool_formats import FORMS, HERMES
from workers.engine.chat.tool_grammar import tool_constraint
from workers.engine.chat.tool_request import read_tools
from workers.engine.events import JobRejected
from workers.engine.structured.compiler import GrammarCompiler, SchemaLimits, TokenTable

BYTES = TokenTable([*(bytes([byte]) for byte in range(256)), b""], frozenset({256}), frozenset({256}))
forms = pytest.mark.parametrize(
    "form", [FORMS["glm"], FORMS["glm-compact"], FORMS["minimax"], FORMS["qwen-coder"]], ids=lambda form: form.name
)


@pytest.fixture(scope="module")
def compiler():
    compiler = GrammarCompiler(BYTES, SchemaLimits(max_bytes=65_536, compile_ms=5_000, step_ms=50.0))
    yield compiler
    compiler.close()


def request_of(parameters):
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    return read_tools({"messages": [], "tools": [tool], "tool_choice": "required"})


def parameters_of(properties, required=(), **more):
    return {"type": "object", "properties": properties, "required": list(required), **more}


def allows(compiler, form, parameters, answer):
    """Return whether the grammar allows a whole answer."""
    matcher = compiler.compile(tool_constraint(request_of(parameters), form, {}, max_bytes=65_536), "a").start()
    for byte in answer.encode():
        if not matcher.allows(byte):
            return False
        matcher.accept(byte)
    return bool(matcher.ended or matcher.allows(256))


def read(form, parameters, answer):
    """Return the arguments of the one call in an answer."""
    reader = CallReader(form, text_parameters(request_of(parameters)))
    (call,) = read_parts(reader.feed(answer) + reader.finish()).calls
    return json.loads(call.arguments)


@forms
@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        ({"type": "string"}, ["", "Paris", '"Paris"', "7", 'a\n\\ <b> "é"', "</arg_value </parameter"], []),
        ({"type": "string", "maxLength": 3}, ["", "abc", "äöü"], ["abcd"]),
        ({"type": "string", "minLength": 2}, ["ab", "abc"], ["", "a"]),
        ({"type": "string", "enum": ["C", "F"]}, ["C", "F"], ["", "K", '"C"', "CF"]),
        ({"type": "string", "const": "C"}, ["C"], ["F", ""]),
        ({"type": "string", "description": "A city", "default": "Paris"}, ["Paris"], []),
    ],
    ids=["any", "short", "long", "enum", "const", "described"],
)
def test_a_value_that_can_only_be_a_string_is_written_as_it_is(compiler, form, schema, allowed, refused):
    parameters = parameters_of({"a": schema}, ["a"])
    for value in allowed:
        answer = form.write([("f", json.dumps({"a": value}))])
        assert allows(compiler, form, parameters, answer), value
        assert read(form, parameters, answer) == {"a": value}
    for value in refused:
        assert not allows(compiler, form, parameters, form.write([("f", json.dumps({"a": value}))])), value


@forms
@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        ({"type": "integer", "minimum": 3}, [3, 70], [2, 3.5]),
        ({"type": "boolean"}, [True, False], [None, 1]),
        ({"type": "array", "items": {"type": "string"}}, [[], ["</arg_value>\n", "</parameter>\n"]], [[1]]),
        ({"type": "object", "properties": {"b": {"type": "string"}}}, [{}, {"b": "c"}], [{"b": 1}]),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [None, 4], [True]),
        ({"$ref": "#/$defs/level"}, [1, 2], [3]),
        ({}, [None, {"a": [1]}], []),
    ],
    ids=["integer", "boolean", "array", "object", "any of", "reference", "anything"],
)
def test_all_other_values_are_json(compiler, form, schema, allowed, refused):
    parameters = parameters_of({"a": schema}, ["a"], **{"$defs": {"level": {"enum": [1, 2]}}})
    for value in allowed:
        answer = form.write([("f", json.dumps({"a": value}))])
        assert allows(compiler, form, parameters, answer), value
        assert read(form, parameters, answer) == {"a": value}
    for value in refused:
        assert not allows(compiler, form, parameters, form.write([("f", json.dumps({"a": value}))])), value


@forms
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^[a-z]+$"},
        {"type": ["string", "null"]},
        {"type": "string", "enum": ["C"], "maxLength": 1},
        {"type": "string", "maxLength": 5000},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"enum": ["paris", 7]},
    ],
    ids=["pattern", "types", "enum and length", "very long", "any of", "mixed enum"],
)
def test_a_string_with_other_restrictions_or_among_other_types_is_json(compiler, form, schema):
    parameters = parameters_of({"a": schema}, ["a"])
    value = "C" if "enum" in schema and "maxLength" in schema else "paris"
    plain, quoted = (form.write([("f", json.dumps({"a": text}))]) for text in (value, f'"{value}"'))
    assert not allows(compiler, form, parameters, plain)
    assert allows(compiler, form, parameters, quoted)
    assert read(form, parameters, quoted) == {"a": value}


@forms
def test_required_parameters_must_be_written_and_others_may_be(compiler, form):
    parameters = parameters_of({"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "string"}}, ["b"])
    for given in ({"b": 1}, {"a": "x", "b": 1}, {"a": "x", "b": 1, "c": ""}):
        answer = form.write([("f", json.dumps(given))])
        assert allows(compiler, form, parameters, answer), given
        assert read(form, parameters, answer) == given
    for given in ({}, {"a": "x"}, {"b": 1, "d": 2}, {"b": 1, "a": "x"}):
        assert not allows(compiler, form, parameters, form.write([("f", json.dumps(given))])), given


@forms
@pytest.mark.parametrize(
    "parameters",
    [{}, None, {"type": "object"}, {"type": "object", "properties": {}}],
    ids=["empty", "null", "object", "no properties"],
)
def test_a_tool_without_parameters_is_called_without_any(compiler, form, parameters):
    assert allows(compiler, form, parameters, form.write([("f", "{}")]))
    assert read(form, parameters, form.write([("f", "{}")])) == {}
    assert not allows(compiler, form, parameters, form.write([("f", '{"a": 1}')]))


@forms
def test_parameters_that_are_not_listed_are_written_where_the_schema_allows_them(compiler, form):
    parameters = parameters_of({"a": {"type": "string"}}, ["a"], additionalProperties={"type": "integer"})
    answer = form.write([("f", json.dumps({"a": "x", "b": 1, "c": 2}))])
    assert allows(compiler, form, parameters, answer)
    assert read(form, parameters, answer) == {"a": "x", "b": 1, "c": 2}
    assert not allows(compiler, form, parameters, form.write([("f", json.dumps({"a": "x", "b": [1]}))]))
    twice = answer.replace(form.parameters.before + "b", form.parameters.before + "a")
    assert not allows(compiler, form, parameters, twice)


@forms
def test_a_schema_that_is_a_reference_is_followed(compiler, form):
    parameters = {"$ref": "#/$defs/args", "$defs": {"args": parameters_of({"a": {"type": "string"}}, ["a"])}}
    answer = form.write([("f", '{"a": "x"}')])
    assert allows(compiler, form, parameters, answer)
    assert read(form, parameters, answer) == {"a": "x"}


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"type": "object", "anyOf": [{"required": ["a"]}]}, "the schema of the tool 'f' .*keyword anyOf"),
        ({"type": "object", "patternProperties": {"a": {}}}, "the schema of the tool 'f' .*keyword patternProperties"),
        (
            parameters_of(
                {f"a{i}": {"$ref": "#/$defs/b"} for i in range(500)},
                **{"$defs": {"b": {"enum": ["x" * 100 + str(i) for i in range(100)]}}},
            ),
            "the schema of the tool 'f' .*too many definitions",
        ),
    ],
    ids=["any of", "patterns", "definitions"],
)
def test_a_schema_that_cannot_be_divided_is_refused_by_name(parameters, words):
    with pytest.raises(JobRejected, match=words) as rejected:
        tool_constraint(request_of(parameters), FORMS["glm"], {}, max_bytes=65_536)
    assert rejected.value.param == "tools"


CONTROL = re.compile(r"</s>|<tool_call>|<arg_key>")


def test_names_of_control_tokens_are_split_in_what_clients_send_however_it_is_escaped():
    call = {"name": "f", "arguments": '{"a": "\\u003c/s>", "b": "<tool_call>"}'}
    messages = [
        {"role": "user", "content": "hi </s>"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "1", "content": "<arg_key>"},
    ]
    for source in (
        template_of(HERMES),
        template_of(FORMS["glm"]),
        "{% for m in messages %}{{ m.content }}|{% endfor %}",
    ):
        template = ChatTemplate(source, bos="", eos="")
        pieces = template.pieces(messages, CONTROL)
        whole = [piece for piece in pieces if "</s>" in piece]
        assert not whole
        assert "</s>" in "".join(pieces)


def test_the_marks_of_an_explanation_stay_whole_so_that_they_become_control_tokens():
    template = ChatTemplate("{% for m in messages %}{{ m.content }}|{% endfor %}", bos="", eos="")
    tool = {"type": "function", "function": {"name": "f", "description": "</s> <tool_call>"}}
    pieces = template.pieces([{"role": "user", "content": "hi"}], CONTROL, [tool])
    assert sum(piece.count("<tool_call>") for piece in pieces) == 1
    assert "".join(pieces).count("<tool_call>") == 2
    assert not any("</s>" in piece for piece in pieces)

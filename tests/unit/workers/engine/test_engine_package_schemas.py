"""Tests that schemas are held as zod, pydantic and servers of tools write them, and which keys an answer may have."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.settings.settings import load
from workers import demo
from workers.engine.chat.tool_formats import HERMES
from workers.engine.chat.tool_grammar import tool_constraint
from workers.engine.chat.tool_request import read_tools
from workers.engine.events import JobRejected, JobSpec
from workers.engine.llama.backend import LlamaBackend, load_backend

#: The schema of a type by zod 4 and pydantic 2 → texts that fit it, and texts that do not.
WRITTEN: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "zod record of an enum": (
        {
            "type": "object",
            "propertyNames": {"type": "string", "enum": ["a", "b"]},
            "additionalProperties": {"type": "number"},
            "required": ["a", "b"],
        },
        [{"a": 1, "b": 2}],
        [{"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": "x", "b": 2}],
    ),
    "zod record of a pattern": (
        {
            "type": "object",
            "propertyNames": {"type": "string", "pattern": "^k_"},
            "additionalProperties": {"type": "string"},
        },
        [{}, {"k_a": "x"}],
        [{"a": "x"}, {"k_a": 1}],
    ),
    "pydantic dict of literals": (
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}},
        [{}, {"b": 2}],
        [{"c": 1}],
    ),
    "zod never": (
        {"type": "object", "properties": {"a": {"not": {}}, "b": {"type": "integer"}}},
        [{"b": 1}, {}],
        [{"a": 1, "b": 1}],
    ),
    "zod cuid2": ({"type": "string", "format": "cuid2", "pattern": "^[0-9a-z]+$"}, ["a1"], ["A"]),
    "zod nanoid": ({"type": "string", "format": "nanoid", "pattern": "^[a-zA-Z0-9_-]{21}$"}, ["a" * 21], ["a"]),
    "zod float64": (
        {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
        [1.5, -2],
        ["x"],
    ),
    "zod loose object": (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {}},
        [{"a": 1, "b": 2}],
        [],
    ),
}
#: A schema that is silent about other properties → an answer with a property that it does not name.
SILENT: list[tuple[dict[str, Any], Any]] = [
    ({"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": 1, "b": 2}),
    ({"properties": {"a": {"type": "object", "properties": {"x": {}}, "required": ["x"]}}}, {"a": {"x": 1, "y": 2}}),
    ({"type": "array", "items": {"type": "object", "properties": {"a": {}}}}, [{"a": 1, "z": 1}]),
    (
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"k": {"$ref": "#/$defs/n"}}}}},
        {"k": {"j": {}}},
    ),
]
#: A schema that allows others → an answer with one.
OPEN: list[tuple[dict[str, Any], Any]] = [
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True}, {"a": 1, "b": 2}),
    ({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, {"a": 1, "b": 2}),
    ({"type": "object", "properties": {}}, {"b": 2}),
    ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, {"b": 2}),
    ({"type": "object", "properties": {"a": {}}, "patternProperties": {"^x": {}}}, {"xb": 2}),
    ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, {"a": 1, "b": 2}),
]
ODD = {"type": "object", "properties": {"where": {"type": "string", "format": "unheard-of"}}}


def load_demo(**settings: Any) -> LlamaBackend:
    path = Path(demo.__file__).with_name("penstock-demo.gguf")
    return load_backend(load({}, None, device="cpu", max_batch_size=1, kv_cells=2048, threads=1, **settings), path)


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaBackend]:
    backend = load_demo()
    yield backend
    backend.close()


def prepare(model: LlamaBackend, schema: dict[str, Any]) -> Any:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return model.prepare(JobSpec("a", "blue", {"prompt": "x", "response_format": form}, 1, 1e9))


def fits(model: LlamaBackend, schema: dict[str, Any], answer: Any) -> bool:
    """Return whether the grammar for the schema allows an answer, token by token, and its end."""
    matcher = prepare(model, schema).grammar.start()
    for token in model.tokenize(json.dumps(answer)).tolist():
        if matcher.ended or not matcher.allows(token):
            return False
        matcher.accept(token)
    return matcher.ended or any(matcher.allows(token) for token in model._vocab.end_tokens)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_schema_that_a_package_writes_is_held(model: LlamaBackend, name: str) -> None:
    schema, right, wrong = WRITTEN[name]
    assert [fits(model, schema, answer) for answer in right] == [True] * len(right)
    assert [fits(model, schema, answer) for answer in wrong] == [False] * len(wrong)


@pytest.mark.parametrize(("schema", "answer"), SILENT)
def test_a_property_that_a_schema_does_not_name_is_not_generated(
    model: LlamaBackend, schema: dict[str, Any], answer: Any
) -> None:
    assert not fits(model, schema, answer)


@pytest.mark.parametrize(("schema", "answer"), OPEN)
def test_other_properties_are_generated_if_the_schema_speaks_of_them(
    model: LlamaBackend, schema: dict[str, Any], answer: Any
) -> None:
    assert fits(model, schema, answer)


def test_an_unknown_format_is_refused_or_an_annotation_as_the_setting_says(model: LlamaBackend) -> None:
    function = {"name": "f", "strict": True, "parameters": ODD}
    with_tool = {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": function}]}
    for refused in (lambda: prepare(model, ODD), lambda: model.prepare(JobSpec("a", "blue", with_tool, 1, 1e9))):
        with pytest.raises(JobRejected, match=r"properties\.where\.format is not supported"):
            refused()
    lenient = load_demo(unknown_formats="ignore")
    assert fits(lenient, ODD, {"where": "here"})
    assert not fits(lenient, ODD, {"where": 1})
    assert lenient.prepare(JobSpec("a", "blue", with_tool, 1, 1e9)).grammar is not None
    with pytest.raises(JobRejected, match="not is not supported"):
        prepare(lenient, {"not": {"type": "string"}})
    lenient.close()


def test_a_tool_without_strict_may_have_a_pattern_that_looks_around() -> None:
    parameters = {"type": "object", "properties": {"host": {"type": "string", "pattern": "^(?=.{1,253}$)[a-z]+$"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    request = read_tools({"messages": [{"role": "user", "content": "x"}], "tools": tools})
    assert request is not None
    held = json.loads(tool_constraint(request, HERMES, {}, max_bytes=10_000).parts[0][1])
    assert held["properties"] == {"host": {"type": "string"}}

"""Tests of JSON schemas as grammars: answers fit them, and unsupported schemas are rejected with the reason."""

import json
import re

import jsonschema
import pytest

from tests.support.cpu_time import cpu_time_below
from workers.engine.events import JobRejected, JobSpec
from workers.engine.structured.schema import to_supported


def an_object(**properties):
    return {"type": "object", "properties": properties, "required": sorted(properties), "additionalProperties": False}


SUPPORTED = [
    an_object(score={"type": "integer", "minimum": 1, "maximum": 5}),
    an_object(age={"type": "integer", "exclusiveMinimum": 17, "exclusiveMaximum": 21}),
    an_object(name={"type": ["string", "null"], "maxLength": 3}),
    an_object(kind={"type": ["string", "null"], "enum": ["a", None]}),
    an_object(maximum={"type": "boolean"}, pattern={"const": "x"}),
    an_object(point={"prefixItems": [{"type": "boolean"}, {"type": "null"}]}),
    an_object(either={"anyOf": [{"type": "boolean"}, an_object(x={"type": "null"})]}),
    an_object(few={"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}),
    an_object(day={"type": "string", "format": "date"}, code={"type": "string", "pattern": "^[a-c]{2}$"}),
    {
        "$defs": {"leaf": an_object(ok={"type": "boolean"})},
        **an_object(left={"$ref": "#/$defs/leaf", "description": "the left one"}, right={"$ref": "#/$defs/leaf"}),
    },
    an_object(word={"type": "string", "pattern": "^.{1,9}$"}),
    an_object(choice={"type": "string", "pattern": "^(dibo|kufe)$"}, code={"type": "string", "pattern": r"^\d{2}-\w$"}),
    an_object(mark={"type": "string", "pattern": '^"[^a]?\\\\$'}),
    an_object(spelled={"enum": ['say "hi"', "a\\b", "two\nlines", "é"]}, lone={"const": "\\"}),
    {**an_object(**{'q"\\': {"type": "null"}}), "description": "a name that JSON spells with backslashes"},
    an_object(size=an_object(n={"type": "null"}), other={"$ref": "#/$defs/size"})
    | {"$defs": {"size": {"type": "boolean"}}},
    an_object(
        one={"$ref": "#/$defs/a/properties/last"},
        two={"$ref": "#/$defs/b/properties/last"},
    )
    | {"$defs": {"a": an_object(last={"type": "null"}), "b": an_object(last={"type": "boolean"})}},
    an_object(kind={"allOf": [{"$ref": "#/$defs/kind"}], "description": "of the two"})
    | {"$defs": {"kind": {"enum": ["a", "b"]}}},
    an_object(both={"allOf": [{"$ref": "#/$defs/x"}, {"properties": {"y": {"type": "null"}}}]})
    | {"$defs": {"x": {"type": "object", "properties": {"x": {"type": "null"}}}}},
    an_object(few={"type": ["array", "null"], "items": {"type": "null"}, "maxItems": 2}),
    an_object(age={"type": ["integer", "null"], "minimum": 1, "maximum": 9}),
]


@pytest.mark.parametrize("schema", SUPPORTED, ids=lambda schema: "-".join(schema["properties"]))
def test_an_answer_fits_its_schema(driven, schema):
    for ended in driven.answers(schema, max_tokens=300, temperature=1.0):
        assert (ended.outcome, ended.finish_reason) == ("succeeded", "stop"), ended
        jsonschema.validate(json.loads(ended.text), schema)


def test_a_recursive_definition_is_supported_at_the_top_and_below_it(driven):
    node = an_object(name={"type": "boolean"}, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    form = {"type": "json_schema", "schema": schema}
    # A bias towards "n", which begins null, keeps the chain short, so that the answer ends before max_tokens.
    backend = driven.engine.backend
    bias = {str(next(token for token in range(backend.n_vocab) if backend.piece(token) == b"n")): 100}
    driven.submit("a", {"prompt": "dibo", "max_tokens": 300, "logit_bias": bias, "seed": 1, "response_format": form})
    driven.run_until_idle()
    assert driven.ended["a"].finish_reason == "stop"
    jsonschema.validate(json.loads(driven.ended["a"].text), schema)


@pytest.mark.parametrize("text", [{"type": "string", "maxLength": 4}, {"type": "string", "pattern": "^.{1,4}$"}])
def test_a_string_contains_no_raw_control_character_even_if_a_bias_favors_them(driven, text):
    backend = driven.engine.backend
    control_tokens = [token for token in range(backend.n_vocab) if backend.piece(token) in {b"\n", b"\t", b"\x01"}]
    assert len(control_tokens) >= 3
    form = {"type": "json_schema", "schema": an_object(x=text)}
    bias = {str(token): 100 for token in control_tokens}
    driven.submit("a", {"prompt": "dibo", "max_tokens": 99, "seed": 1, "logit_bias": bias, "response_format": form})
    driven.run_until_idle()
    jsonschema.validate(json.loads(driven.ended["a"].text), an_object(x=text))


def _chain(n):
    """`n` definitions that each refer to the next one twice: few grammar rules, but 2 ** n paths through them."""
    definitions = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(n)}
    return {"anyOf": [{"$ref": "#/$defs/d0"}], "$defs": definitions | {f"d{n}": {"type": "null"}}}


def _nested(n):
    schema = {"type": "null"}
    for _ in range(n):
        schema = {"type": ["object", "array", "object"], "properties": {"a": schema}, "items": schema}
    return schema


BOMBS = {
    "paths": _chain(40),
    "types": _nested(15) | {"maximum": 1},
    "names": an_object(**{chr(0x4E00 + i): {"enum": [i]} for i in range(2_000)}),
    "pattern": an_object(x={"type": "string", "pattern": "^([ a-y]?){1001}$"}),
    "lists": {"anyOf": [{"type": "array", "items": {"const": i}} for i in range(11)]},
    "self-reference": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}}},
    "digits": an_object(x={"type": "string", "pattern": "^a{" + "9" * 5_000 + "}$"}),
}


def prepare(backend, schema):
    """Prepare a job with that schema."""
    form = {"type": "json_schema", "schema": schema}
    backend.prepare(JobSpec("a", "blue", {"prompt": "x", "response_format": form}, 1, 1e9))


@pytest.mark.parametrize("name", BOMBS)
def test_a_schema_that_would_block_the_worker_is_rejected_within_two_seconds(backend, name):
    with cpu_time_below(2), pytest.raises(JobRejected) as caught:
        prepare(backend, BOMBS[name])
    assert caught.value.param == "response_format"


def test_a_job_with_an_ambiguous_nested_schema_fails_before_it_delays_the_others(driven):
    backend = driven.engine.backend
    kinds = [an_object(a={"$ref": "#/$defs/x"}, **{f"kind{i}": {"type": "null"}}) for i in range(20)]
    schema = {"anyOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"anyOf": [*kinds, {"type": "null"}]}}}
    deeper = next(token for token in range(backend.n_vocab) if backend.piece(token) == b"{")
    form = {"type": "json_schema", "schema": schema}
    driven.submit("a", {"prompt": "x", "max_tokens": 90, "logit_bias": {str(deeper): 100}, "response_format": form})
    driven.submit("b", {"prompt": "dibo", "max_tokens": 90, "temperature": 0})
    with cpu_time_below(10):
        driven.run_until_idle()
    assert driven.ended["a"].message.startswith("GrammarSlow: ")
    assert driven.ended["b"].usage.completion_tokens == 90


def test_an_ambiguous_pattern_does_not_delay_the_steps(driven):
    form = {"type": "json_schema", "schema": {"type": "string", "pattern": "^([ a-y]?){120}$"}}
    driven.submit("a", {"prompt": "dibo", "max_tokens": 60, "temperature": 1.0, "seed": 1, "response_format": form})
    with cpu_time_below(5):
        driven.run_until_idle()
    assert driven.ended["a"].outcome == "succeeded"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"allOf": [{"type": "string"}, {"type": "string"}]}, "allOf may join only objects"),
        ({"allOf": [{"properties": {}}, {"anyOf": []}]}, "anyOf is empty"),
        ({"allOf": [{"properties": {}}, an_object(y={"type": "null"})]}, "allOf may join only objects"),
        ({"enum": []}, "enum is empty"),
        ({"$ref": "#/$defs/none"}, "refers to no part of the schema"),
        ({"anyOf": [{"$ref": "#/anyOf/²"}]}, "refers to no part of the schema"),
        ({"type": "string", "pattern": "^a|b$"}, "must end with $"),
    ],
)
def test_an_unsupported_schema_is_rejected_with_the_reason(backend, schema, message):
    with pytest.raises(JobRejected, match=re.escape(message)):
        prepare(backend, schema)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"type": "integer", "minimum": 0}, "at x: minimum is supported only for integers"),
        ({"type": "integer", "minimum": 0, "maximum": 10**6}, "at x: maximum is supported only for integers"),
        ({"type": "number", "minimum": 0, "maximum": 1}, "maximum is supported only for integers"),
        ({"type": "number", "multipleOf": 2}, "multipleOf is not supported"),
        ({"type": "array", "items": {"not": {"type": "null"}}}, "at x[]: the keyword not is not supported"),
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, "uniqueItems is not supported"),
        ({"type": "array", "minItems": 2}, "minItems is supported only beside items"),
        ({"items": {"type": "null"}, "prefixItems": [{"type": "null"}]}, "items is not supported beside prefixItems"),
        ({"type": "string", "pattern": "^a*$", "maxLength": 3}, "maxLength is not supported beside pattern"),
        ({"type": "object", "required": ["y"]}, "at x: required names 'y'"),
        ({"anyOf": [{"type": "null"}], "properties": {}}, "anyOf is not supported beside properties"),
        ({"anyOf": [{"type": "null"}, {"if": {}}]}, "at x.anyOf[1]: the keyword if is not supported"),
        ({"type": "string", "allOf": [{"type": "string"}]}, "allOf is supported only for objects"),
    ],
)
def test_an_unsupported_keyword_is_rejected_with_its_position_in_the_schema(field, message):
    with pytest.raises(JobRejected) as caught:
        to_supported(an_object(x=field))
    assert message in caught.value.message
    assert caught.value.param == "response_format"

"""Schemas that grammars keep: answers fit them, and what cannot be kept is rejected by name."""

import json
import re
import time

import jsonschema
import pytest

from workers.engine.events import JobRejected, JobSpec
from workers.engine.structured.schema import kept


def an_object(**properties):
    return {"type": "object", "properties": properties, "required": sorted(properties), "additionalProperties": False}


KEPT = [
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


@pytest.mark.parametrize("schema", KEPT, ids=lambda schema: "-".join(schema["properties"]))
def test_an_answer_fits_its_schema(driven, schema):
    for ended in driven.answers(schema, max_tokens=300, temperature=1.0):
        assert (ended.outcome, ended.finish_reason) == ("succeeded", "stop"), ended
        jsonschema.validate(json.loads(ended.text), schema)


def test_a_definition_that_leads_to_itself_is_kept_at_the_top_and_below(driven):
    node = an_object(name={"type": "boolean"}, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    form = {"type": "json_schema", "schema": schema}
    # A bias keeps the chain short, and the answer whole.
    backend = driven.engine.backend
    bias = {str(next(token for token in range(backend.n_vocab) if backend.piece(token) == b"n")): 100}
    driven.submit("a", {"prompt": "dibo", "max_tokens": 300, "logit_bias": bias, "seed": 1, "response_format": form})
    driven.run_dry()
    assert driven.ended["a"].finish_reason == "stop"
    jsonschema.validate(json.loads(driven.ended["a"].text), schema)


@pytest.mark.parametrize("text", [{"type": "string", "maxLength": 4}, {"type": "string", "pattern": "^.{1,4}$"}])
def test_a_string_holds_no_raw_line_break_however_much_the_model_wants_one(driven, text):
    backend = driven.engine.backend
    breaks = [token for token in range(backend.n_vocab) if backend.piece(token) in {b"\n", b"\t", b"\x01"}]
    assert len(breaks) >= 3
    form = {"type": "json_schema", "schema": an_object(x=text)}
    bias = {str(token): 100 for token in breaks}
    driven.submit("a", {"prompt": "dibo", "max_tokens": 99, "seed": 1, "logit_bias": bias, "response_format": form})
    driven.run_dry()
    jsonschema.validate(json.loads(driven.ended["a"].text), an_object(x=text))


def _chain(n):
    """Definitions that lead from one to the next along two paths each: a grammar of 50 rules, and 2 ** n ways."""
    ways = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(n)}
    return {"anyOf": [{"$ref": "#/$defs/d0"}], "$defs": ways | {f"d{n}": {"type": "null"}}}


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
    "itself": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}}},
    "digits": an_object(x={"type": "string", "pattern": "^a{" + "9" * 5_000 + "}$"}),
}


def prepare(backend, schema):
    """A job with that schema."""
    form = {"type": "json_schema", "schema": schema}
    backend.prepare(JobSpec("a", "blue", {"prompt": "x", "response_format": form}, 1, 1e9))


@pytest.mark.parametrize("name", BOMBS)
def test_a_schema_that_would_hold_up_the_worker_is_rejected_at_once(backend, name):
    began = time.process_time()
    with pytest.raises(JobRejected) as caught:
        prepare(backend, BOMBS[name])
    assert caught.value.param == "response_format"
    assert time.process_time() - began < 2


def test_values_within_values_that_can_be_read_in_many_ways_fail_their_job_before_they_hold_up_the_others(driven):
    backend = driven.engine.backend
    kinds = [an_object(a={"$ref": "#/$defs/x"}, **{f"kind{i}": {"type": "null"}}) for i in range(20)]
    schema = {"anyOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"anyOf": [*kinds, {"type": "null"}]}}}
    deeper = next(token for token in range(backend.n_vocab) if backend.piece(token) == b"{")
    form = {"type": "json_schema", "schema": schema}
    driven.submit("a", {"prompt": "x", "max_tokens": 90, "logit_bias": {str(deeper): 100}, "response_format": form})
    driven.submit("b", {"prompt": "dibo", "max_tokens": 90, "temperature": 0})
    began = time.process_time()
    driven.run_dry()
    assert time.process_time() - began < 10
    assert driven.ended["a"].message.startswith("GrammarSlow: ")
    assert driven.ended["b"].usage.completion_tokens == 90


def test_a_pattern_that_can_be_read_in_many_ways_holds_up_no_step(driven):
    form = {"type": "json_schema", "schema": {"type": "string", "pattern": "^([ a-y]?){120}$"}}
    driven.submit("a", {"prompt": "dibo", "max_tokens": 60, "temperature": 1.0, "seed": 1, "response_format": form})
    began = time.process_time()
    driven.run_dry()
    assert driven.ended["a"].outcome == "succeeded"
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"allOf": [{"type": "string"}, {"type": "string"}]}, "allOf joins only objects"),
        ({"allOf": [{"properties": {}}, {"anyOf": []}]}, "anyOf is empty"),
        ({"allOf": [{"properties": {}}, an_object(y={"type": "null"})]}, "allOf joins only objects"),
        ({"enum": []}, "enum is empty"),
        ({"$ref": "#/$defs/none"}, "names no part of it"),
        ({"anyOf": [{"$ref": "#/anyOf/²"}]}, "names no part of it"),
        ({"type": "string", "pattern": "^a|b$"}, "has to end with $"),
    ],
)
def test_what_cannot_be_kept_whole_says_why(backend, schema, said):
    with pytest.raises(JobRejected, match=re.escape(said)):
        prepare(backend, schema)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"type": "integer", "minimum": 0}, "at x: minimum cannot be kept (whole numbers"),
        ({"type": "integer", "minimum": 0, "maximum": 10**6}, "at x: maximum cannot be kept"),
        ({"type": "number", "minimum": 0, "maximum": 1}, "maximum cannot be kept"),
        ({"type": "number", "multipleOf": 2}, "multipleOf cannot be kept"),
        ({"type": "array", "items": {"not": {"type": "null"}}}, "at x[]: not cannot be kept"),
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, "uniqueItems cannot be kept"),
        ({"type": "array", "minItems": 2}, "minItems is kept beside items only"),
        ({"items": {"type": "null"}, "prefixItems": [{"type": "null"}]}, "items cannot be kept beside prefixItems"),
        ({"type": "string", "pattern": "^a*$", "maxLength": 3}, "maxLength cannot be kept beside pattern"),
        ({"type": "object", "required": ["y"]}, "at x: required names 'y'"),
        ({"anyOf": [{"type": "null"}], "properties": {}}, "anyOf cannot be kept beside properties"),
        ({"anyOf": [{"type": "null"}, {"if": {}}]}, "at x.anyOf[1]: if cannot be kept"),
        ({"type": "string", "allOf": [{"type": "string"}]}, "allOf is kept for objects only"),
    ],
)
def test_what_a_grammar_cannot_keep_is_rejected_by_its_place(field, said):
    with pytest.raises(JobRejected) as caught:
        kept(an_object(x=field))
    assert said in caught.value.message
    assert caught.value.param == "response_format"

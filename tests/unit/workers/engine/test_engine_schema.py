"""Schemas that grammars keep: answers fit them, and what cannot be kept is rejected by name."""

import json

import jsonschema
import pytest

from workers.engine.events import JobRejected
from workers.engine.schema import kept


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
]


@pytest.mark.parametrize("schema", KEPT, ids=lambda schema: "-".join(schema["properties"]))
def test_an_answer_fits_its_schema(driven, schema):
    form = {"type": "json_schema", "schema": schema}
    for seed in range(3):
        payload = {"prompt": "dibo", "max_tokens": 300, "temperature": 1.0, "seed": seed, "response_format": form}
        driven.submit(str(seed), payload)
    driven.run_dry()
    for ended in driven.ended.values():
        assert (ended.outcome, ended.finish_reason) == ("succeeded", "stop"), ended
        jsonschema.validate(json.loads(ended.text), schema)


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

"""A JSON schema as the grammar's converter can keep it: rewritten where that says the same, rejected where it cannot.

The converter passes over what it does not know, so that an answer would follow the grammar and not the
schema. What stands here is what it was seen to pass over (llama-cpp-python 0.3.36, llama_grammar.py).
"""

from collections.abc import Mapping
from typing import Any

from shared.jobs.outcomes import EndCode
from workers.engine.events import JobRejected

#: Whole numbers between bounds are written out, at most so many.
MOST_NUMBERS = 1000
#: Keywords that restrict a value and that no rule is made of.
_NOT_KEPT = frozenset(
    {
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "minProperties",
        "maxProperties",
        "patternProperties",
        "propertyNames",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "if",
        "then",
        "else",
        "not",
        "unevaluatedItems",
        "unevaluatedProperties",
        "additionalItems",
        "$dynamicRef",
        "$recursiveRef",
    }
)
#: Keywords beside which the converter looks at no other.
_ALONE = ("$ref", "anyOf", "oneOf", "allOf")
#: Keywords that say nothing about a value.
_ANNOTATIONS = frozenset(
    {
        "$id",
        "$schema",
        "$defs",
        "definitions",
        "$comment",
        "$anchor",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "nullable",
        "discriminator",
        "format",
        "strict",
    }
)
#: Keywords that say something about values of these types only.
_CONCERNS = {
    name: types
    for types, names in (
        (("object",), ("properties", "required", "additionalProperties")),
        (("array",), ("items", "prefixItems", "minItems", "maxItems")),
        (("string",), ("minLength", "maxLength", "pattern", "format")),
        (("integer", "number"), ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    )
    for name in names
}
_DEFS = ("$defs", "definitions")
_MAPS, _LISTS = ("properties", *_DEFS), ("anyOf", "oneOf", "allOf", "prefixItems")


def kept(schema: Any, where: str = "") -> Any:
    """The same schema, in words that the converter knows. Raises JobRejected, naming the place and the keyword."""
    if not isinstance(schema, Mapping):
        return schema
    told = _numbers(_one_type_each(_without_lone_all_of(dict(schema))))
    _check(told, where)
    for name in _MAPS:
        if isinstance(told.get(name), Mapping):
            told[name] = {key: kept(value, f"{where}.{key}") for key, value in told[name].items()}
    for name in _LISTS:
        if isinstance(told.get(name), list):
            told[name] = [kept(value, f"{where}.{name}[{i}]") for i, value in enumerate(told[name])]
    if isinstance(told.get("items"), list):
        told["items"] = [kept(value, f"{where}[{i}]") for i, value in enumerate(told["items"])]
    for name, place in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(told.get(name), Mapping):
            told[name] = kept(told[name], where + place)
    return told


def _without_lone_all_of(schema: dict[str, Any]) -> dict[str, Any]:
    """`allOf` of one part, which is how some write a description beside a $ref, as that part."""
    parts = schema.get("allOf")
    if not isinstance(parts, list) or len(parts) != 1 or not isinstance(parts[0], Mapping):
        return schema
    if set(schema) - _ANNOTATIONS - {"allOf"}:
        return schema
    return _without_lone_all_of({name: value for name, value in schema.items() if name != "allOf"} | dict(parts[0]))


def _one_type_each(schema: dict[str, Any]) -> dict[str, Any]:
    """Several types as alternatives, each with what is said of it: no part of the schema is written out twice."""
    types = schema.get("type")
    if not isinstance(types, list):
        return schema
    rest = {name: value for name, value in schema.items() if name != "type"}
    if any(rest.get(name) is not None for name in ("enum", "const", *_ALONE)):
        return rest
    alternatives = [
        {"type": one} | {name: rest[name] for name in rest if name not in _DEFS and one in _CONCERNS.get(name, (one,))}
        for one in dict.fromkeys(map(str, types))
    ]
    return {name: rest[name] for name in _DEFS if name in rest} | {"anyOf": alternatives}


def _numbers(schema: dict[str, Any]) -> dict[str, Any]:
    """Whole numbers between two bounds, written out."""
    if schema.get("type") != "integer":
        return schema
    lows = [schema[name] + more for name, more in (("minimum", 0), ("exclusiveMinimum", 1)) if _whole(schema, name)]
    highs = [schema[name] - less for name, less in (("maximum", 0), ("exclusiveMaximum", 1)) if _whole(schema, name)]
    if not lows or not highs or not 0 <= min(highs) - max(lows) < MOST_NUMBERS or "enum" in schema or "const" in schema:
        return schema
    bounds = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    rest = {name: value for name, value in schema.items() if name not in bounds}
    return rest | {"enum": list(range(max(lows), min(highs) + 1))}


def _whole(schema: Mapping[str, Any], name: str) -> bool:
    return isinstance(schema.get(name), int) and not isinstance(schema[name], bool)


def _check(schema: Mapping[str, Any], where: str) -> None:
    names = {name for name, value in schema.items() if value is not None}
    for name in sorted(names & {"enum", *_ALONE}):
        if schema[name] == []:
            raise _rejected(where, f"{name} is empty, and nothing fits it")
    if "const" in names or "enum" in names:
        # The values are spelled out: whatever else is said of them, the schema's author has checked.
        return
    for name in sorted(names & _NOT_KEPT):
        if name == "uniqueItems" and schema[name] is False:
            continue
        but = f" (whole numbers between two bounds, at most {MOST_NUMBERS}, can)" if "imum" in name else ""
        raise _rejected(where, f"{name} cannot be kept{but}")
    for name in _ALONE:
        others = names - _ANNOTATIONS - {name, "type"}
        if name in names and others:
            raise _rejected(where, f"{name} cannot be kept beside {min(others)}")
    _check_object(schema, names, where)
    _check_lengths(names, where)


def _check_object(schema: Mapping[str, Any], names: set[str], where: str) -> None:
    required = schema.get("required")
    properties = schema.get("properties")
    if isinstance(required, list) and "allOf" not in names:
        lacking = [name for name in required if not isinstance(properties, Mapping) or name not in properties]
        if lacking:
            raise _rejected(where, f"required names {lacking[0]!r}, which properties does not describe")
    if "allOf" in names and schema.get("type") not in {None, "object"}:
        raise _rejected(where, "allOf is kept for objects only")


def _check_lengths(names: set[str], where: str) -> None:
    lengths, counts = names & {"minLength", "maxLength"}, names & {"minItems", "maxItems"}
    if lengths and names & {"pattern", "format"}:
        raise _rejected(where, f"{min(lengths)} cannot be kept beside {min(names & {'pattern', 'format'})}")
    if counts and ("items" not in names or "prefixItems" in names):
        raise _rejected(where, f"{min(counts)} is kept beside items only")
    if {"items", "prefixItems"} <= names:
        raise _rejected(where, "items cannot be kept beside prefixItems")


def _rejected(where: str, why: str) -> JobRejected:
    place = f" at {where.lstrip('.')}"[:100] if where else ""
    message = f"response_format's schema cannot be used{place}: {why}"
    return JobRejected(EndCode.INVALID_VALUE, message, "response_format")

"""Rewrite a JSON schema into an equivalent one that the grammar converter supports, or reject it.

The grammar converter ignores keywords that it does not support, so an answer could follow the grammar and still violate
the schema. This module handles the keywords that the converter of llama-cpp-python 0.3.36 (llama_grammar.py) ignores.
"""

from collections.abc import Mapping
from typing import Any

from shared.jobs.outcomes import EndCode
from workers.engine.events import JobRejected

#: An integer with a lower and an upper bound is rewritten as the list of its values if there are at most this many.
MAX_LISTED_INTEGERS = 1000
#: Keywords that restrict a value, but that the converter ignores. `_check` rejects schemas that need them.
_UNSUPPORTED = frozenset(
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
#: If a schema has one of these keywords, the converter ignores all its other keywords.
_EXCLUSIVE = ("$ref", "anyOf", "oneOf", "allOf")
#: Keywords that do not restrict a value.
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
#: Keyword → the types to which it applies. Keywords that are not listed apply to all types.
_TYPES_OF_KEYWORD = {
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
#: Keywords whose value is an object with schemas as its values, and keywords whose value is a list of schemas.
_MAPS, _LISTS = ("properties", *_DEFS), ("anyOf", "oneOf", "allOf", "prefixItems")


def to_supported(schema: Any, where: str = "") -> Any:
    """Return an equivalent schema that uses only keywords that the converter supports.

    `where` is the path of `schema` in the whole schema. Raises JobRejected with a message that names the path.
    """
    if not isinstance(schema, Mapping):
        return schema
    rewritten = _list_integers(_split_types(_unwrap_all_of(dict(schema))))
    _check(rewritten, where)
    for name in _MAPS:
        if isinstance(rewritten.get(name), Mapping):
            rewritten[name] = {key: to_supported(value, f"{where}.{key}") for key, value in rewritten[name].items()}
    for name in _LISTS:
        if isinstance(rewritten.get(name), list):
            rewritten[name] = [to_supported(value, f"{where}.{name}[{i}]") for i, value in enumerate(rewritten[name])]
    if isinstance(rewritten.get("items"), list):
        rewritten["items"] = [to_supported(value, f"{where}[{i}]") for i, value in enumerate(rewritten["items"])]
    for name, place in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(rewritten.get(name), Mapping):
            rewritten[name] = to_supported(rewritten[name], where + place)
    return rewritten


def _unwrap_all_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace an `allOf` that has only one part by that part. Some tools add a description to a $ref in this way."""
    parts = schema.get("allOf")
    if not isinstance(parts, list) or len(parts) != 1 or not isinstance(parts[0], Mapping):
        return schema
    if set(schema) - _ANNOTATIONS - {"allOf"}:
        return schema
    return _unwrap_all_of({name: value for name, value in schema.items() if name != "allOf"} | dict(parts[0]))


def _split_types(schema: dict[str, Any]) -> dict[str, Any]:
    """Rewrite a list of types as `anyOf` with one alternative for each type.

    A keyword that applies only to certain types is copied only to the alternatives for these types.
    """
    types = schema.get("type")
    if not isinstance(types, list):
        return schema
    rest = {name: value for name, value in schema.items() if name != "type"}
    if any(rest.get(name) is not None for name in ("enum", "const", *_EXCLUSIVE)):
        return rest
    alternatives = [
        {"type": one}
        | {name: rest[name] for name in rest if name not in _DEFS and one in _TYPES_OF_KEYWORD.get(name, (one,))}
        for one in dict.fromkeys(map(str, types))
    ]
    return {name: rest[name] for name in _DEFS if name in rest} | {"anyOf": alternatives}


def _list_integers(schema: dict[str, Any]) -> dict[str, Any]:
    """Rewrite an integer with a lower and an upper bound as an `enum` of its values, if these are not too many."""
    if schema.get("type") != "integer":
        return schema
    lows = [
        schema[name] + offset for name, offset in (("minimum", 0), ("exclusiveMinimum", 1)) if _is_integer(schema, name)
    ]
    highs = [
        schema[name] - offset for name, offset in (("maximum", 0), ("exclusiveMaximum", 1)) if _is_integer(schema, name)
    ]
    if "enum" in schema or "const" in schema or not lows or not highs:
        return schema
    if not 0 <= min(highs) - max(lows) < MAX_LISTED_INTEGERS:
        return schema
    bounds = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    rest = {name: value for name, value in schema.items() if name not in bounds}
    return rest | {"enum": list(range(max(lows), min(highs) + 1))}


def _is_integer(schema: Mapping[str, Any], name: str) -> bool:
    return isinstance(schema.get(name), int) and not isinstance(schema[name], bool)


def _check(schema: Mapping[str, Any], where: str) -> None:
    names = {name for name, value in schema.items() if value is not None}
    for name in sorted(names & {"enum", *_EXCLUSIVE}):
        if schema[name] == []:
            raise _rejected(where, f"{name} is empty, so no value matches it")
    if "const" in names or "enum" in names:
        # The values are listed, so other keywords are ignored. The schema's author must list only valid values.
        return
    for name in sorted(names & _UNSUPPORTED):
        if name == "uniqueItems" and schema[name] is False:
            continue
        if "imum" in name:
            condition = f"integers with a lower and an upper bound and at most {MAX_LISTED_INTEGERS} values"
            raise _rejected(where, f"{name} is supported only for {condition}")
        raise _rejected(where, f"the keyword {name} is not supported")
    for name in _EXCLUSIVE:
        others = names - _ANNOTATIONS - {name, "type"}
        if name in names and others:
            raise _rejected(where, f"{name} is not supported beside {min(others)}")
    _check_object(schema, names, where)
    _check_lengths(names, where)


def _check_object(schema: Mapping[str, Any], names: set[str], where: str) -> None:
    required = schema.get("required")
    properties = schema.get("properties")
    if isinstance(required, list) and "allOf" not in names:
        missing = [name for name in required if not isinstance(properties, Mapping) or name not in properties]
        if missing:
            raise _rejected(where, f"required names {missing[0]!r}, which is not in properties")
    if "allOf" in names and schema.get("type") not in {None, "object"}:
        raise _rejected(where, "allOf is supported only for objects")


def _check_lengths(names: set[str], where: str) -> None:
    lengths, counts = names & {"minLength", "maxLength"}, names & {"minItems", "maxItems"}
    if lengths and names & {"pattern", "format"}:
        raise _rejected(where, f"{min(lengths)} is not supported beside {min(names & {'pattern', 'format'})}")
    if counts and ("items" not in names or "prefixItems" in names):
        raise _rejected(where, f"{min(counts)} is supported only beside items")
    if {"items", "prefixItems"} <= names:
        raise _rejected(where, "items is not supported beside prefixItems")


def _rejected(where: str, why: str) -> JobRejected:
    place = f" at {where.lstrip('.')}"[:100] if where else ""
    message = f"response_format's schema cannot be used{place}: {why}"
    return JobRejected(EndCode.INVALID_VALUE, message, "response_format")

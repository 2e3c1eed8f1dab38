"""JSON schemas for tests of structured output: one for each feature, and some that are made to hold a worker up."""

from collections.abc import Sequence
from typing import Any

Schema = dict[str, Any]


def an_object(**properties: Any) -> Schema:
    """Return the schema of an object that has exactly these properties."""
    return {"type": "object", "properties": properties, "required": sorted(properties), "additionalProperties": False}


def bounded_integers(n: int) -> Schema:
    """Return an object of `n` integers, each with a lower and an upper bound: 400 take 30 kB."""
    return an_object(
        **{f"field{i}": {"type": "integer", "minimum": -10_000 - i, "maximum": 99_999 + i} for i in range(n)}
    )


def long_names(n: int, length: int) -> Schema:
    """Return an object with `n` properties whose names have `length` characters."""
    return an_object(**{f"{i:x}".rjust(length, "x"): {"type": "boolean"} for i in range(n)})


_POINT = an_object(x={"type": "integer", "minimum": 0, "maximum": 9})
_NODE = an_object(name={"type": "boolean"}, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})

#: A schema for each feature that an answer can be held to.
FEATURES: dict[str, Schema] = {
    "boolean": an_object(x={"type": "boolean"}),
    "null": an_object(x={"type": "null"}),
    "integer": an_object(x={"type": "integer"}),
    "number": an_object(x={"type": "number"}),
    "integer-minimum": an_object(x={"type": "integer", "minimum": 17}),
    "integer-maximum": an_object(x={"type": "integer", "maximum": -3}),
    "integer-range": an_object(x={"type": "integer", "minimum": 1, "maximum": 12345}),
    "integer-exclusive": an_object(x={"type": "integer", "exclusiveMinimum": 17, "exclusiveMaximum": 21}),
    "number-range": an_object(x={"type": "number", "minimum": -0.5, "maximum": 1.25}),
    "number-exclusive": an_object(x={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
    "integer-multiple": an_object(x={"type": "integer", "multipleOf": 7}),
    "number-multiple": an_object(x={"type": "number", "multipleOf": 0.5, "maximum": 100, "minimum": 0}),
    "string": an_object(x={"type": "string"}),
    "string-min": an_object(x={"type": "string", "minLength": 3, "maxLength": 9}),
    "string-max": an_object(x={"type": "string", "maxLength": 3}),
    "string-empty": an_object(x={"type": "string", "maxLength": 0}),
    "pattern": an_object(x={"type": "string", "pattern": "^[a-c]{2}$"}),
    "pattern-anywhere": an_object(x={"type": "string", "pattern": "[0-9]", "maxLength": 9}),
    "pattern-alternatives": an_object(x={"type": "string", "pattern": "^(dibo|kufe)$"}),
    "pattern-open-alternatives": an_object(x={"type": "string", "pattern": "^a|b$", "maxLength": 6}),
    "pattern-length": an_object(x={"type": "string", "pattern": "^a*$", "minLength": 2, "maxLength": 3}),
    "pattern-quotes": an_object(x={"type": "string", "pattern": '^"[^a]?\\\\$'}),
    "pattern-class": an_object(x={"type": "string", "pattern": r"^\d{2}-\w$"}),
    "date": an_object(x={"type": "string", "format": "date"}),
    "time": an_object(x={"type": "string", "format": "time"}),
    "date-time": an_object(x={"type": "string", "format": "date-time"}),
    "uuid": an_object(x={"type": "string", "format": "uuid"}),
    "email": an_object(x={"type": "string", "format": "email", "maxLength": 30}),
    "ipv4": an_object(x={"type": "string", "format": "ipv4"}),
    "const": an_object(x={"const": {"a": [1, None, "\\"]}}),
    "enum": an_object(x={"enum": ["a", 1, None, 'say "hi"', "two\nlines", "é", "\u2028"]}),
    "enum-of-type": an_object(x={"type": ["string", "null"], "enum": ["a", None]}),
    "types": an_object(x={"type": ["string", "null"], "maxLength": 3}),
    "types-bounds": an_object(x={"type": ["integer", "null"], "minimum": 1, "maximum": 9}),
    "any-of": an_object(x={"anyOf": [{"type": "boolean"}, _POINT]}),
    "one-of": an_object(x={"oneOf": [{"type": "boolean"}, {"type": "null"}]}),
    "one-of-tagged": an_object(
        x={"oneOf": [an_object(kind={"const": "a"}, y={"type": "null"}), an_object(kind={"const": "b"})]}
    ),
    "all-of": an_object(x={"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}),
    "all-of-properties": an_object(
        x={
            "allOf": [
                {"$ref": "#/$defs/p"},
                {"required": ["x"], "additionalProperties": False, "properties": {"x": {}}},
            ]
        }
    )
    | {"$defs": {"p": {"type": "object", "properties": {"x": {"type": "null"}}}}},
    "any-of-beside-properties": {
        "type": "object",
        "properties": {"x": {"type": "null"}},
        "required": ["x"],
        "additionalProperties": False,
        "anyOf": [{"required": ["x"]}],
    },
    "reference": {"$defs": {"p": _POINT}, **an_object(a={"$ref": "#/$defs/p", "description": "left"})},
    "reference-to-property": an_object(size=_POINT, other={"$ref": "#/properties/size"}),
    "reference-at-top": {"$ref": "#/$defs/p", "$defs": {"p": _POINT}},
    "recursive": {"$ref": "#/$defs/node", "$defs": {"node": _NODE}},
    "array": an_object(x={"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}),
    "array-empty": an_object(x={"type": "array", "maxItems": 0}),
    "array-prefix": an_object(
        x={"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}], "items": False, "minItems": 2}
    ),
    "array-prefix-and-items": an_object(
        x={"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "boolean"}, "maxItems": 3}
    ),
    "array-not-unique": an_object(x={"type": "array", "items": {"type": "null"}, "uniqueItems": False, "maxItems": 2}),
    "nested": an_object(a=an_object(b=an_object(c={"type": "array", "items": _POINT, "maxItems": 1}))),
    "optional": {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}}, "required": ["b"]}
    | {"additionalProperties": False},
    "additional": {"type": "object", "additionalProperties": {"type": "null"}, "maxProperties": 2},
    "pattern-properties": {
        "type": "object",
        "patternProperties": {"^a[0-9]$": {"type": "boolean"}},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    "min-properties": {"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 1}
    | {"maxProperties": 1},
    "odd-names": an_object(**{'q"\\': {"type": "null"}, "é水": {"type": "null"}, "a b": {"type": "null"}}),
    "names-of-keywords": an_object(**{"not": {"type": "null"}, "if": {"const": {"not": 1}}}),
    "annotations": {"title": "t", "$comment": "c", "examples": [1], "$id": "http://a/b", **_POINT},
}


def _chain(n: int) -> Schema:
    """Return `n` definitions that each refer to the next one twice, so that there are 2 ** n paths through them."""
    definitions: Schema = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(n)
    }
    return {"anyOf": [{"$ref": "#/$defs/d0"}], "$defs": definitions | {f"d{n}": {"type": "null"}}}


def _nested(n: int) -> Schema:
    schema: Schema = {"type": "null"}
    for _ in range(n):
        schema = {"type": ["object", "array"], "properties": {"a": schema}, "items": schema}
    return schema


def _ambiguous(n: int) -> Schema:
    kinds: Sequence[Schema] = [an_object(a={"$ref": "#/$defs/x"}, **{f"kind{i}": {"type": "null"}}) for i in range(n)]
    return {"$ref": "#/$defs/x", "$defs": {"x": {"anyOf": [*kinds, {"type": "null"}]}}}


def _pattern(pattern: str) -> Schema:
    return {"type": "string", "pattern": pattern}


#: Schemas that are made to take a worker's time or memory.
BOMBS: dict[str, Schema] = {
    "multiples": an_object(**{f"f{i}": {"type": "integer", "multipleOf": 1_000_003 + i} for i in range(20)}),
    "optional-properties": {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(2_000)}},
    "intersection": {"allOf": [_pattern(f"(.*{chr(97 + i)}){{{i + 5}}}") for i in range(15)]},
    "integers": bounded_integers(800),
    "long-names": long_names(15, 4_000),
    "paths": _chain(40),
    "all-of-paths": {
        "$ref": "#/$defs/d0",
        "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
        | {"d40": {"type": "object"}},
    },
    "nested": _nested(9),
    "lists": {"anyOf": [{"type": "array", "items": {"type": "array", "items": {"const": i}}} for i in range(500)]},
    "ambiguous": _ambiguous(100),
    "choices": {"enum": [f"{i * 7919:x}" for i in range(4_000)]},
    "self-reference": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}}},
    "self-reference-only": {"$ref": "#"},
    "pattern": _pattern("^([ a-y]?){1001}$"),
    "pattern-repeats": _pattern("^((a{1,1000}){1,1000}){1,1000}$"),
    "pattern-backtracks": _pattern("^(.*a){1,500}.{500}$"),
    "pattern-doubles": _pattern("(a|b)*a(a|b){30}"),
    "pattern-unicode": _pattern(r"^(\p{L}{1,100}\w{1,100}\W{1,100}){1,100}$"),
    "pattern-words": _pattern("^(" + "|".join(f"{i * 7919:x}" for i in range(700)) + ")$"),
    "repetitions": {"type": "array", "minItems": 10**6, "maxItems": 10**8, "items": {"type": "null"}},
    "digits": _pattern("^a{" + "9" * 3_000 + "}$"),
    "size": {"enum": ["x" * 1_000] * 100},
}


def _with_argument(schema: Schema) -> Schema:
    """Return parameters of a tool with one argument of this schema, whose definitions stay at the top."""
    return an_object(a={name: value for name, value in schema.items() if name != "$defs"}) | {
        "$defs": schema.get("$defs", {})
    }


def _tool(number: int, parameters: Schema) -> Schema:
    function = {"name": f"{number}".rjust(64, "x"), "description": "It is a tool.", "parameters": parameters}
    return {"type": "function", "function": function}


#: Lists of tools that are made to take a worker's time or memory.
TOOL_BOMBS: dict[str, list[Schema]] = {
    **{name: [_tool(0, _with_argument(schema))] for name, schema in BOMBS.items()},
    "many": [_tool(i, an_object(a={"type": "integer", "minimum": -i, "maximum": 99_999})) for i in range(128)],
    "many-patterns": [_tool(i, an_object(a=_pattern(f"^(a|b)*a(a|b){{{i % 9}}}$"))) for i in range(128)],
    "many-multiples": [_tool(i, an_object(a={"type": "integer", "multipleOf": 1_000_003 + i})) for i in range(128)],
    "many-enums": [_tool(i, an_object(a={"enum": [f"{i * j:x}" for j in range(40)]})) for i in range(128)],
    "many-open": [_tool(i, {"type": "object", "additionalProperties": True}) for i in range(128)],
    "many-recursive": [_tool(i, an_object(a=_NODE) | {"$defs": {"node": _NODE}}) for i in range(128)],
    "descriptions": [_tool(i, an_object(a={"type": "null", "description": "x" * 7_000})) for i in range(128)],
}

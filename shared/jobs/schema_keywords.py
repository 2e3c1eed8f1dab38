"""The JSON Schema keywords that no answer can be held to: the door refuses a schema that has one, and so do workers.

The workers' library (llguidance) is what decides; a test compares this list with it. The list lets the door refuse at
once, and lets both name the place of the keyword in the schema.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

#: Keywords that restrict a value, and that llguidance does not implement.
UNSUPPORTED = frozenset(
    {
        "not",
        "if",
        "then",
        "else",
        "contains",
        "minContains",
        "maxContains",
        "propertyNames",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$dynamicRef",
        "$recursiveRef",
    }
)
#: The formats of texts that llguidance implements.
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)
#: Keywords that say something about a schema, and restrict no value.
_ANNOTATIONS = frozenset(
    {
        "$comment",
        "$id",
        "$schema",
        "default",
        "deprecated",
        "description",
        "example",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    }
)
#: Keywords whose value is an object with schemas as its values, keywords whose value is a list of schemas, and keywords
#: whose value is a schema. `items` may also be a list.
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "additionalItems")
_NESTING = frozenset({*_MAPS, *_LISTS, *_SINGLE})
#: Keywords about properties that a schema does not name, and those that join a schema with others.
_ABOUT_OTHERS = frozenset({"additionalProperties", "patternProperties", "minProperties"})
_JOINING = frozenset({"$ref", "anyOf", "oneOf", "allOf"})
_BOUNDS = frozenset({"minimum", "maximum"})
#: Every number of a program is within this bound and its negative.
_WIDEST = 1.7e308
#: The most names of an object that are taken from an `enum` of `propertyNames`.
_MAX_NAMES = 64
#: The syntax that the library's regular expressions lack.
_LOOKS_AROUND = re.compile(r"\(\?<?[=!]")
#: At most this many schemas inside one schema are examined, so that the door spends at most a few ms on a body.
_MAX_NODES = 10_000
#: A longer path is cut.
_MAX_PATH = 200


class KeywordPlace(NamedTuple):
    """A keyword and the path of the schema that contains it, such as `properties.name`; "" for the whole schema."""

    keyword: str
    path: str

    def __str__(self) -> str:
        """Return the path of the keyword itself."""
        return f"{self.path}.{self.keyword}" if self.path else self.keyword


def unsupported_keyword(schema: Mapping[str, Any], *, formats: bool = False) -> KeywordPlace | None:
    """Return the first keyword of the schema that is not supported, or None; with `formats`, unknown formats count too.

    Keywords that restrict nothing are supported. Takes time in proportion to the schema's size, up to a limit: of a
    very large schema only the first part is examined.
    """
    # Nearly all schemas have none, and paths take most of the time.
    if not any(_unsupported_in(node, formats=formats) for node in _plain_nodes(schema)):
        return None
    for node, path in nodes(schema):
        found = _unsupported_in(node, formats=formats)
        if found:
            return KeywordPlace(min(found), path)
    return None


def drop_idle_keywords(schema: dict[str, Any]) -> None:
    """Remove the keywords that the library does not implement and that restrict nothing.

    Some that restrict something are written in another way, which the library implements.
    """
    for node in _plain_nodes(schema):
        if _fits_nothing(node):
            node.clear()
            node["enum"] = []
        elif "propertyNames" in node and (named := _as_properties(node)) is not None:
            del node["propertyNames"]
            node.update(named)
        for name in _unimplemented(node) & _idle_in(node):
            del node[name]
        if _has_unknown_format(node) and "pattern" in node:
            del node["format"]
        for name in _BOUNDS.intersection(node):
            if isinstance(node[name], float) and abs(node[name]) >= _WIDEST:
                del node[name]


def close_objects(schema: dict[str, Any]) -> None:
    """Allow only the properties that an object's schema names, unless it says something about others.

    A model that makes up properties is of no use, and a schema that is silent about them allows to leave them out.
    Schemas whose parts add properties to each other are left as they are.
    """
    every = list(_plain_nodes(schema))
    if any(len(node.get("allOf", ())) > 1 or _adds_properties(node) for node in every):
        return
    for node in every:
        names, required = node.get("properties"), node.get("required", ())
        if not isinstance(names, dict) or not names or not _ABOUT_OTHERS.isdisjoint(node):
            continue
        if isinstance(required, list | tuple) and all(name in names for name in required):
            node["additionalProperties"] = False


def _adds_properties(node: Mapping[str, Any]) -> bool:
    return "properties" in node and not _JOINING.isdisjoint(node)


def drop_unsupported_keywords(schema: dict[str, Any]) -> None:
    """Remove the keywords that no answer can be held to, so that answers are held to the rest."""
    drop_idle_keywords(schema)
    for node in _plain_nodes(schema):
        for name in _unimplemented(node):
            del node[name]
        if isinstance(node.get("pattern"), str) and _LOOKS_AROUND.search(node["pattern"]):
            del node["pattern"]
    drop_unknown_formats(schema)


def drop_unknown_formats(schema: dict[str, Any]) -> None:
    """Remove the formats that no answer can be held to, as if they were annotations."""
    for node in _plain_nodes(schema):
        if _has_unknown_format(node):
            del node["format"]


def _unimplemented(node: Mapping[str, Any]) -> set[str]:
    """Return the keywords of the schema that the library does not implement. It refuses `uniqueItems` even if false."""
    return {*UNSUPPORTED.intersection(node), *({"uniqueItems"} & node.keys())}


def _unsupported_in(node: Mapping[str, Any], *, formats: bool) -> set[str]:
    if UNSUPPORTED.isdisjoint(node) and "uniqueItems" not in node and not (formats and "format" in node):
        return set()
    found = _unimplemented(node) - _idle_in(node)
    if _fits_nothing(node):
        found.discard("not")
    if "propertyNames" in found and _as_properties(node) is not None:
        found.discard("propertyNames")
    refused = formats and _has_unknown_format(node) and "pattern" not in node
    return found | {"format"} if refused else found


def _has_unknown_format(node: Mapping[str, Any]) -> bool:
    """Return whether the library refuses the schema's format: it ignores those of values that are not texts."""
    kinds = node.get("type", "string")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return "format" in node and node["format"] not in FORMATS and "string" in kinds


def _idle_in(node: Mapping[str, Any]) -> set[str]:
    """Return the keywords that restrict nothing because of their own value or of the schema's other keywords."""
    idle = {name for name, restricts_nothing in _IDLE.items() if name in node and restricts_nothing(node[name])}
    if "if" not in node or all(_accepts_all(node.get(name, True)) for name in ("then", "else")):
        idle |= {"if", "then", "else"}
    if "contains" not in node:
        idle |= {"minContains", "maxContains"}
    elif node.get("minContains") == 0 and "maxContains" not in node:
        idle |= {"contains", "minContains"}
    if not node.get("uniqueItems") or _at_most_one(node.get("maxItems")):
        idle.add("uniqueItems")
    return idle


def _at_most_one(value: Any) -> bool:
    return isinstance(value, int | float) and value <= 1


def _accepts_all(schema: Any) -> bool:
    """Return whether it is easy to see that every value fits the schema."""
    if not isinstance(schema, dict):
        return schema is True
    return schema.keys() <= _ANNOTATIONS | (_idle_in(schema) if schema.keys() - _ANNOTATIONS else set())


def _accepts_all_texts(schema: Any) -> bool:
    """Return whether it is easy to see that every text fits the schema."""
    if not isinstance(schema, dict):
        return schema is True
    kinds = schema.get("type", "string")
    rest = {name: value for name, value in schema.items() if name != "type"}
    if rest.get("minLength") == 0:
        del rest["minLength"]
    return "string" in (kinds if isinstance(kinds, list) else [kinds]) and _accepts_all(rest)


def _accepts_nothing(schema: Any) -> bool:
    return schema is False or (isinstance(schema, dict) and "not" in schema and _accepts_all(schema["not"]))


def _fits_nothing(node: Mapping[str, Any]) -> bool:
    """Return whether the schema is `not` of everything, as zod writes `never`."""
    return "not" in node and _accepts_all(node["not"])


def _as_properties(node: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return keywords that mean the same as the schema's `propertyNames`, as zod and pydantic write maps; else None.

    They take the place of `additionalProperties`, so that the schema may have no other keyword about properties.
    """
    names = node["propertyNames"]
    if not isinstance(names, dict) or "properties" in node or "patternProperties" in node:
        return None
    rest = names.keys() - _ANNOTATIONS - {"type"}
    kinds = names.get("type", "string")
    if len(rest) != 1 or "string" not in (kinds if isinstance(kinds, list) else [kinds]):
        return None
    value = node.get("additionalProperties", True)
    if isinstance(names.get("pattern"), str):
        return {"patternProperties": {names["pattern"]: value}, "additionalProperties": False}
    allowed = names.get("enum", [names.get("const")])
    if not isinstance(allowed, list) or not 1 <= len(allowed) <= _MAX_NAMES:
        return None
    if not all(isinstance(name, str) for name in allowed):
        return None
    return {"properties": dict.fromkeys(allowed, value), "additionalProperties": False}


def _are_idle_dependencies(value: Any) -> bool:
    return isinstance(value, dict) and all(each == [] or _accepts_all(each) for each in value.values())


#: Keyword → whether this value of it restricts nothing.
_IDLE: dict[str, Callable[[Any], bool]] = {
    "not": _accepts_nothing,
    "propertyNames": _accepts_all_texts,
    "dependencies": _are_idle_dependencies,
    "dependentRequired": _are_idle_dependencies,
    "dependentSchemas": _are_idle_dependencies,
    "unevaluatedItems": _accepts_all,
    "unevaluatedProperties": _accepts_all,
}


def _plain_nodes(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the schemas that `nodes` yields, in another order and without their paths."""
    waiting: list[Any] = [schema]
    for _ in range(_MAX_NODES):
        if not waiting:
            return
        node = waiting.pop()
        if not isinstance(node, dict):
            continue
        yield node
        if _NESTING.isdisjoint(node):
            continue
        for name in _NESTING.intersection(node):
            waiting += islice(_schemas_in(name, node[name]), max(0, _MAX_NODES - len(waiting)))


def _schemas_in(name: str, value: Any) -> Iterable[Any]:
    if isinstance(value, list):
        return value if name in _LISTS else ()
    if isinstance(value, dict):
        return value.values() if name in _MAPS else [value] if name in _SINGLE else ()
    return ()


def nodes(schema: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the schema and each schema inside it, with its path. The values of `enum` and `const` are not schemas."""
    waiting: list[tuple[Any, str]] = [(schema, "")]
    for _ in range(_MAX_NODES):
        if not waiting:
            return
        node, path = waiting.pop()
        if not isinstance(node, dict):
            continue
        yield node, path
        if not _NESTING.isdisjoint(node):
            waiting += islice(_children(node, f"{path}." if path else ""), max(0, _MAX_NODES - len(waiting)))


def _children(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[Any, str]]:
    for name in _SINGLE:
        if isinstance(node.get(name), dict):
            yield node[name], f"{prefix}{name}"[:_MAX_PATH]
    for name in _MAPS:
        if isinstance(node.get(name), dict):
            yield from ((value, f"{prefix}{name}.{key}"[:_MAX_PATH]) for key, value in node[name].items())
    for name in _LISTS:
        if isinstance(node.get(name), list):
            yield from ((value, f"{prefix}{name}[{i}]"[:_MAX_PATH]) for i, value in enumerate(node[name]))

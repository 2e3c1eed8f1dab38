"""The JSON Schema keywords that no answer can be held to: the door refuses a schema that has one, and so do workers.

The workers' library (llguidance) is what decides; a test compares this list with it. The list lets the door refuse at
once, and lets both name the place of the keyword in the schema.
"""

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
#: At most this many schemas inside one schema are examined, so that the door spends at most a few ms on a body.
_MAX_NODES = 10_000
#: A longer path is cut.
_MAX_PATH = 200


class Place(NamedTuple):
    """A keyword and the path of the schema that contains it, such as `properties.name`; "" for the whole schema."""

    keyword: str
    path: str

    def __str__(self) -> str:
        """Return the path of the keyword itself."""
        return f"{self.path}.{self.keyword}" if self.path else self.keyword


def unsupported_keyword(schema: Mapping[str, Any], *, formats: bool = False) -> Place | None:
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
            return Place(min(found), path)
    return None


def drop_idle_keywords(schema: dict[str, Any]) -> None:
    """Remove the keywords that the library does not implement and that restrict nothing."""
    for node in _plain_nodes(schema):
        for name in _unimplemented(node) & _idle_in(node):
            del node[name]


def drop_unsupported_keywords(schema: dict[str, Any], *, formats_only: bool = False) -> None:
    """Remove the keywords that no answer can be held to, so that answers are held to the rest."""
    for node in _plain_nodes(schema):
        for name in set() if formats_only else _unimplemented(node):
            del node[name]
        if _has_unknown_format(node):
            del node["format"]


def _unimplemented(node: Mapping[str, Any]) -> set[str]:
    """Return the keywords of the schema that the library does not implement. It refuses `uniqueItems` even if false."""
    return {*UNSUPPORTED.intersection(node), *({"uniqueItems"} & node.keys())}


def _unsupported_in(node: Mapping[str, Any], *, formats: bool) -> set[str]:
    if UNSUPPORTED.isdisjoint(node) and "uniqueItems" not in node and not (formats and "format" in node):
        return set()
    found = _unimplemented(node) - _idle_in(node)
    return found | {"format"} if formats and _has_unknown_format(node) else found


def _has_unknown_format(node: Mapping[str, Any]) -> bool:
    """Return whether the library refuses the schema's format: it ignores those of values that are no texts."""
    kinds = node.get("type", "string")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return "format" in node and node["format"] not in FORMATS and "string" in kinds


def _idle_in(node: Mapping[str, Any]) -> set[str]:
    """Return the keywords of the schema that restrict nothing because of their value or of what stands beside them."""
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
    """Return what may be schemas in the value of a keyword that contains schemas."""
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

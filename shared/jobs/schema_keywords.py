"""The JSON Schema keywords that no answer can be held to: the door refuses a schema that has one, and so do workers.

The workers' library (llguidance) is what decides; a test compares this list with it. The list lets the door refuse at
once, and lets both name the place of the keyword in the schema.
"""

from collections.abc import Iterable, Iterator, Mapping
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


def unsupported_keyword(schema: Mapping[str, Any]) -> Place | None:
    """Return the first keyword of the schema that is not supported, or None.

    `uniqueItems` is supported only if it is false. Takes time in proportion to the schema's size, up to a limit: of a
    very large schema only the first part is examined.
    """
    # Nearly all schemas have none, and paths take most of the time.
    if all(_is_supported(node) for node in _plain_nodes(schema)):
        return None
    for node, path in nodes(schema):
        if not _is_supported(node):
            found = UNSUPPORTED.intersection(node) | ({"uniqueItems"} if node.get("uniqueItems") else frozenset())
            return Place(min(found), path)
    return None


def _is_supported(node: dict[str, Any]) -> bool:
    return UNSUPPORTED.isdisjoint(node) and not node.get("uniqueItems")


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

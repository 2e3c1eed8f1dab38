"""Checks of a schema that must follow each $ref: the parts of `allOf`, and the number of alternatives for a value."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from shared.jobs.outcomes import EndCode
from workers.engine.events import JobRejected


@dataclass(frozen=True)
class Alternatives:
    """The number of alternatives that a schema allows for one value, counted after each $ref is followed."""

    total: int
    #: Number of the alternatives that are objects or lists.
    containers: int = 0
    #: Number of the alternatives that are lists.
    lists: int = 0

    def __add__(self, other: "Alternatives") -> "Alternatives":
        return Alternatives(self.total + other.total, self.containers + other.containers, self.lists + other.lists)

    @property
    def too_many(self) -> bool:
        """Whether one of the numbers is over its limit in MAX_ALTERNATIVES."""
        limits = MAX_ALTERNATIVES
        return self.total > limits.total or self.containers > limits.containers or self.lists > limits.lists


#: Maximum number of alternatives for one value. There are two reasons for these limits. First, llama.cpp searches a
#: grammar for left recursion along every path. In a chain of definitions, each with two alternatives that both lead to
#: the next definition, this search takes minutes for 30 definitions and days for 40. Second, llama.cpp tracks all ways
#: to match a text at the same time. If values are nested, the number of ways multiplies: each bracket of a token such
#: as `[[[[` multiplies it by the number of alternatives that are lists.
MAX_ALTERNATIVES = Alternatives(1000, 100, 10)
_TOO_MANY = Alternatives(MAX_ALTERNATIVES.total + 1)

#: The keywords that a part of an `allOf` may have. The first three restrict a value, and the others do not.
_PART = frozenset({"type", "properties", "required", "title", "description", "$comment"})


def resolve_references(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict from each $ref in the schema to its target. Raises JobRejected if a target does not exist."""
    refs = {node["$ref"] for node in _nodes(schema) if isinstance(node.get("$ref"), str)}
    targets = {ref: _follow(ref, schema) for ref in sorted(refs)}
    for ref, target in targets.items():
        if not isinstance(target, Mapping):
            raise _rejected(f"$ref {ref[:100]!r} refers to no part of the schema")
    return targets


def check_resolved(schema: Mapping[str, Any]) -> None:
    """Check the whole schema, and follow each $ref to its target.

    Raises JobRejected if the schema is not supported or would take too long to process, and RecursionError if the
    schema is nested too deeply.
    """
    by_ref: dict[str, Alternatives] = {}
    for node in _nodes(schema):
        if _alternatives(node, schema, by_ref).too_many:
            most = MAX_ALTERNATIVES
            limits = f"{most.total} alternatives, {most.containers} objects and lists, or {most.lists} lists"
            raise _rejected(f"a $ref leads directly back to itself, or a value may be one of over {limits}")
        parts = node.get("allOf")
        for part in parts if isinstance(parts, list) else ():
            target = _target(part, schema)
            if "properties" not in target or set(target) - _PART:
                raise _rejected("allOf may join only objects that specify nothing but type, properties and required")


def _nodes(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every JSON object in the schema, even if it is not a schema itself, because a $ref may point to it."""
    if isinstance(node, Mapping):
        yield node
        for value in node.values():
            yield from _nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from _nodes(value)


def _alternatives(node: Any, schema: Mapping[str, Any], by_ref: dict[str, Alternatives]) -> Alternatives:
    """Count the alternatives that a node of the schema allows.

    `by_ref` stores the count for each $ref. While the count for a $ref is being computed, the stored count is
    _TOO_MANY, so that a $ref that leads back to itself is rejected.
    """
    if not isinstance(node, Mapping):
        return Alternatives(1)
    ref = node.get("$ref")
    if isinstance(ref, str):
        if ref not in by_ref:
            by_ref[ref] = _TOO_MANY
            by_ref[ref] = _alternatives(_follow(ref, schema), schema, by_ref)
        return by_ref[ref]
    choices = node.get("oneOf") or node.get("anyOf")
    if isinstance(choices, list):
        found = Alternatives(0)
        for choice in choices:
            found += _alternatives(choice, schema, by_ref)
        return _TOO_MANY if found.too_many else found
    if "const" in node or "enum" in node:
        return Alternatives(1)
    is_list = node.get("type") == "array" or "items" in node or "prefixItems" in node
    is_object = node.get("type") == "object" or "properties" in node or "allOf" in node
    return Alternatives(1, int(is_list or is_object), int(is_list))


def _target(part: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    ref = part.get("$ref") if isinstance(part, Mapping) else None
    target = part if ref is None else _follow(str(ref), schema)
    return target if isinstance(target, Mapping) else {}


def _follow(ref: str, schema: Any) -> Any:
    """Return the target of a $ref, or None if the schema does not contain the target."""
    if not ref.startswith("#/"):
        return schema if ref == "#" else None
    for word in ref.split("/")[1:]:
        name = unquote(word).replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and name.isdecimal() and int(name[:9]) < len(schema):
            schema = schema[int(name[:9])]
        else:
            schema = schema.get(name) if isinstance(schema, Mapping) else None
    return schema


def _rejected(why: str) -> JobRejected:
    return JobRejected(EndCode.INVALID_VALUE, f"response_format's schema cannot be used: {why}", "response_format")

"""What of a schema shows only with its definitions at hand: what `allOf` joins, and how many ways a value may begin."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from shared.jobs.outcomes import EndCode
from workers.engine.events import JobRejected


@dataclass(frozen=True)
class Ways:
    """How many alternatives a value may begin with, every $ref followed; how many hold values, how many are lists."""

    all: int
    holding: int = 0
    lists: int = 0

    def __add__(self, other: "Ways") -> "Ways":
        return Ways(self.all + other.all, self.holding + other.holding, self.lists + other.lists)

    @property
    def too_many(self) -> bool:
        """Whether there are more than may be."""
        return self.all > MOST.all or self.holding > MOST.holding or self.lists > MOST.lists


#: llama.cpp looks for rules that begin with themselves along every path: thirty definitions of two alternatives each,
#: one leading to the next, would take it minutes, and forty days. And it reads a text in all ways at once: where values
#: hold one another the ways multiply, by the lists among them at every bracket of a token such as `[[[[`.
MOST = Ways(1000, 100, 10)
_TOO_MANY = Ways(MOST.all + 1)

#: All that may stand in a part of an `allOf`, beside words that say nothing of a value.
_PART = frozenset({"type", "properties", "required", "title", "description", "$comment"})


def references_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Every $ref of the schema with what it names. Raises JobRejected for one that names nothing in it."""
    refs = {node["$ref"] for node in _nodes(schema) if isinstance(node.get("$ref"), str)}
    named = {ref: _followed(ref, schema) for ref in sorted(refs)}
    for ref, target in named.items():
        if not isinstance(target, Mapping):
            raise _rejected(f"$ref {ref[:100]!r} names no part of it")
    return named


def check_whole(schema: Mapping[str, Any]) -> None:
    """Raises JobRejected for what cannot be kept or would take too long; RecursionError where it is nested too deep."""
    begun: dict[str, Ways] = {}
    for node in _nodes(schema):
        if _ways(node, schema, begun).too_many:
            most = f"{MOST.all} alternatives, {MOST.holding} objects and lists, or {MOST.lists} lists"
            raise _rejected(f"a value may begin with itself, or with over {most}")
        parts = node.get("allOf")
        for part in parts if isinstance(parts, list) else ():
            target = _target(part, schema)
            if "properties" not in target or set(target) - _PART:
                raise _rejected("allOf joins only objects that say nothing but their properties")


def _nodes(node: Any) -> Iterator[Mapping[str, Any]]:
    """Every object in it, values and names too: a $ref may lead anywhere."""
    if isinstance(node, Mapping):
        yield node
        for value in node.values():
            yield from _nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from _nodes(value)


def _ways(node: Any, schema: Mapping[str, Any], begun: dict[str, Ways]) -> Ways:
    """`begun`: by $ref, what it comes to; while that is not known, too many."""
    if not isinstance(node, Mapping):
        return Ways(1)
    ref = node.get("$ref")
    if isinstance(ref, str):
        if ref not in begun:
            begun[ref] = _TOO_MANY
            begun[ref] = _ways(_followed(ref, schema), schema, begun)
        return begun[ref]
    choices = node.get("oneOf") or node.get("anyOf")
    if isinstance(choices, list):
        found = Ways(0)
        for choice in choices:
            found += _ways(choice, schema, begun)
        return _TOO_MANY if found.too_many else found
    if "const" in node or "enum" in node:
        return Ways(1)
    is_list = node.get("type") == "array" or "items" in node or "prefixItems" in node
    is_object = node.get("type") == "object" or "properties" in node or "allOf" in node
    return Ways(1, int(is_list or is_object), int(is_list))


def _target(part: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    ref = part.get("$ref") if isinstance(part, Mapping) else None
    target = part if ref is None else _followed(str(ref), schema)
    return target if isinstance(target, Mapping) else {}


def _followed(ref: str, schema: Any) -> Any:
    """What a $ref of this schema names; None for what it does not."""
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

"""What of a schema shows only with its definitions at hand: what `allOf` joins, and how many ways a value may begin."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from shared.outcomes import EndCode
from workers.engine.events import JobRejected

#: Most alternatives with which one value may begin, once every $ref is followed. llama.cpp tells each of them from each
#: other one, and looks for rules that begin with themselves along every path: thirty definitions of two alternatives
#: each, one leading to the next, would take it minutes, and forty days.
MAX_ALTERNATIVES = 1000

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
    begun: dict[str, int] = {}
    for node in _nodes(schema):
        if _alternatives(node, schema, begun) > MAX_ALTERNATIVES:
            raise _rejected(f"a value may begin in over {MAX_ALTERNATIVES} ways, or with itself")
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


def _alternatives(node: Any, schema: Mapping[str, Any], begun: dict[str, int]) -> int:
    """`begun`: by $ref, what it comes to; while that is not known, too many."""
    if not isinstance(node, Mapping):
        return 1
    ref = node.get("$ref")
    if isinstance(ref, str):
        if ref not in begun:
            begun[ref] = MAX_ALTERNATIVES + 1
            begun[ref] = _alternatives(_followed(ref, schema), schema, begun)
        return begun[ref]
    choices = node.get("oneOf") or node.get("anyOf")
    if not isinstance(choices, list):
        return 1
    return min(MAX_ALTERNATIVES + 1, sum(_alternatives(choice, schema, begun) for choice in choices))


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
        if isinstance(schema, list) and name.isdigit() and int(name[:9]) < len(schema):
            schema = schema[int(name[:9])]
        else:
            schema = schema.get(name) if isinstance(schema, Mapping) else None
    return schema


def _rejected(why: str) -> JobRejected:
    return JobRejected(EndCode.INVALID_VALUE, f"response_format's schema cannot be used: {why}", "response_format")

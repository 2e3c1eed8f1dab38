"""From a JSON schema to a grammar, within bounds: a client's schema must not cost the worker its memory."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from shared.jobs.outcomes import EndCode
from workers.engine.events import JobRejected
from workers.engine.structured.schema import kept
from workers.engine.structured.schema_whole import check_whole

#: Most repetitions a schema may name: the converter writes each of them out.
MAX_REPETITIONS = 1000
#: Longest grammar in characters; the parser recurses over what it finds.
MAX_GRAMMAR_CHARS = 200_000
#: Deepest schema.
MAX_DEPTH = 64
#: Most objects in a schema: the converter looks for free names one after the other.
MAX_OBJECTS = 1000

_OBJECT = "object"
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def grammar_of(schema: str, any_object: str, convert: Callable[[str], str]) -> str:
    """The grammar of `schema` (JSON text); `any_object` when it is "". Raises JobRejected.

    `convert` is the converter of JSON schemas; what it raises is the schema's fault.
    """
    if not schema:
        return any_object
    read = json.loads(schema)
    objects = 0
    for name, value in _counts_in(read):
        objects += name == _OBJECT
        if value > MAX_REPETITIONS:
            raise _rejected(f"{name} of {value} is over {MAX_REPETITIONS}")
        if objects > MAX_OBJECTS:
            raise _rejected(f"it holds over {MAX_OBJECTS} objects")
    try:
        told = kept(read)
        check_whole(told)
        grammar = convert(json.dumps(told))
    except JobRejected:
        raise
    except RecursionError:
        raise _rejected("it is nested too deep") from None
    except Exception as fault:  # the converter raises whatever it likes
        raise _rejected(f"{type(fault).__name__}: {fault}"[:200]) from fault
    if len(grammar) > MAX_GRAMMAR_CHARS:
        raise _rejected(f"its grammar of {len(grammar)} characters is over {MAX_GRAMMAR_CHARS}")
    return grammar


def _rejected(why: str) -> JobRejected:
    return JobRejected(EndCode.INVALID_VALUE, f"response_format's schema cannot be used: {why}", "response_format")


def _counts_in(node: Any, depth: int = 0) -> Iterator[tuple[str, int]]:
    if depth > MAX_DEPTH:
        raise _rejected(f"it is nested over {MAX_DEPTH} deep")
    if isinstance(node, list):
        for item in node:
            yield from _counts_in(item, depth + 1)
    if not isinstance(node, dict):
        return
    yield _OBJECT, 1
    for name, value in node.items():
        if name in _COUNTS and isinstance(value, int | float):
            yield name, int(min(value, MAX_REPETITIONS + 1))
        else:
            yield from _counts_in(value, depth + 1)

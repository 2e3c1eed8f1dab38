"""Convert a client's JSON schema to a grammar. Limits ensure that no schema can exhaust the worker's memory."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from shared.jobs.outcomes import EndCode
from workers.engine.events import JobRejected
from workers.engine.structured.schema import to_supported
from workers.engine.structured.schema_whole import check_resolved

#: Largest value of `minLength`, `maxItems` and similar keywords. The limit exists because the converter writes out
#: every repetition.
MAX_REPETITIONS = 1000
#: Maximum number of characters that a grammar may have. The limit exists because llama.cpp's grammar parser is
#: recursive, so a very long grammar could overflow the stack.
MAX_GRAMMAR_CHARS = 200_000
#: Maximum number of levels to which a schema may be nested.
MAX_DEPTH = 64
#: Maximum number of JSON objects in a schema. The limit exists because the converter finds a free name for a rule by
#: trying one name after another, which takes long for a schema with many objects.
MAX_OBJECTS = 1000

_OBJECT = "object"
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def grammar_of(schema: str, any_object: str, convert: Callable[[str], str]) -> str:
    """Return the grammar for `schema`, which is JSON text. If `schema` is "", return the grammar `any_object`.

    `convert` converts a supported JSON schema to a grammar. Raises JobRejected if the schema is unsupported, exceeds a
    limit, or makes `convert` raise any exception.
    """
    if not schema:
        return any_object
    parsed = json.loads(schema)
    objects = 0
    for name, value in _counts_in(parsed):
        objects += name == _OBJECT
        if int(min(value, MAX_REPETITIONS + 1)) > MAX_REPETITIONS:
            raise _rejected(f"{name}={value!r:.40} is over the limit of {MAX_REPETITIONS}")
        if objects > MAX_OBJECTS:
            raise _rejected(f"it contains more than {MAX_OBJECTS} objects")
    try:
        supported = to_supported(parsed)
        check_resolved(supported)
        grammar = convert(json.dumps(supported))
    except JobRejected:
        raise
    except RecursionError:
        raise _rejected("it is nested too deeply") from None
    except Exception as fault:  # the converter may raise any exception
        raise _rejected(f"{type(fault).__name__}: {fault}"[:200]) from fault
    if len(grammar) > MAX_GRAMMAR_CHARS:
        raise _rejected(f"its grammar has {len(grammar)} characters, and the limit is {MAX_GRAMMAR_CHARS}")
    return grammar


def _rejected(why: str) -> JobRejected:
    return JobRejected(EndCode.INVALID_VALUE, f"response_format's schema cannot be used: {why}", "response_format")


def _counts_in(node: Any, depth: int = 0) -> Iterator[tuple[str, int | float]]:
    """Yield (keyword, count) for each repetition count in the schema, and (_OBJECT, 1) for each JSON object."""
    if depth > MAX_DEPTH:
        raise _rejected(f"it is nested more than {MAX_DEPTH} levels deep")
    if isinstance(node, list):
        for item in node:
            yield from _counts_in(item, depth + 1)
    if not isinstance(node, dict):
        return
    yield _OBJECT, 1
    for name, value in node.items():
        if name in _COUNTS and isinstance(value, int | float):
            yield name, value
        else:
            yield from _counts_in(value, depth + 1)

"""Reads the values of a JSON document as lines of text, each with its path: `servers[0].name: alpha`."""

import json
from collections.abc import Iterator
from typing import Any

from web.retrieval.formats.documents import UnreadableDocument

#: The most characters of a value's path. Of a longer one, the end is shown.
_PATH_CHARS = 200


def json_text(text: str, *, lines: bool, max_chars: int) -> str:
    """Return the strings, numbers and truth values of a document in order, a line for each.

    With `lines`, each line of the document is a value, and becomes a paragraph. Raises UnreadableDocument, also if the
    text would have more than `max_chars` characters: the path of each value may be longer than the value.
    """
    parts: list[str] = []
    size = 0
    for value in _values_of_lines(text) if lines else (_loaded(text, ""),):
        for part in _leaves(value):
            size += len(part) + 1
            if size > max_chars:
                raise UnreadableDocument(f"the values with their paths have more than {max_chars} characters")
            parts.append(part)
        parts.append("")
    return "\n".join(parts)


def _values_of_lines(text: str) -> Iterator[Any]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _loaded(line, f"line {number}: ")


def _loaded(text: str, where: str) -> Any:
    try:
        # Numbers stay as they are written: a large one takes long to convert.
        return json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    except RecursionError:
        raise UnreadableDocument(f"{where}the JSON is nested too deeply") from None
    except ValueError as error:
        raise UnreadableDocument(f"{where}the content is not JSON: {error}") from None


def _leaves(value: Any) -> Iterator[str]:
    """Yield the line of each value that contains no others; null has none."""
    waiting: list[tuple[str, Iterator[tuple[str, Any]]]] = [("", iter([("", value)]))]
    while waiting:
        path, items = waiting[-1]
        found = next(items, None)
        if found is None:
            waiting.pop()
            continue
        name, item = found
        own = f"{path}{name}"[-_PATH_CHARS:]
        if isinstance(item, dict):
            waiting.append((own, _named(item, dotted=bool(own))))
        elif isinstance(item, list):
            waiting.append((own, ((f"[{at}]", each) for at, each in enumerate(item))))
        elif item is not None:
            shown = str(item).lower() if isinstance(item, bool) else item
            yield f"{own}: {shown}" if own else shown


def _named(item: dict[str, Any], *, dotted: bool) -> Iterator[tuple[str, Any]]:
    dot = "." if dotted else ""
    return ((f"{dot}{key}", each) for key, each in item.items())

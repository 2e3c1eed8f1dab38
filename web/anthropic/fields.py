"""Read the fields of objects in a body of Anthropic's routes; errors name the field and quote its value."""

from typing import Any

from web.api.ignored import note_ignored
from web.http.api_errors import invalid
from web.openai.accepted_fields import shown, unsupported


def read_fields(
    value: Any, known: frozenset[str], where: str, ignored: frozenset[str] = frozenset({"cache_control"})
) -> dict[str, Any]:
    """Return the fields of an object that are not null. Those in `ignored` are left out and noted.

    Raises ApiError for fields that are neither known nor ignored.
    """
    if not isinstance(value, dict):
        raise invalid(where, value, "an object")
    kept = {}
    for name, given in value.items():
        if given is None:
            continue
        if name in ignored:
            note_ignored(name)
            continue
        if name not in known:
            raise unsupported(f"{where}.{shown(name)}", "the field is unknown")
        kept[name] = given
    return kept


def read_text(value: Any, where: str, *, least: int = 0, most: int | None = None) -> str:
    """Return a text without NUL characters, of `least` to `most` characters. Raises ApiError."""
    if not isinstance(value, str):
        raise invalid(where, value, "a text")
    if "\0" in value:
        raise invalid(where, value, "a text without NUL characters (\\u0000)")
    if len(value) < least or (most is not None and len(value) > most):
        raise invalid(where, value, f"a text of {least} to {most} characters")
    return value

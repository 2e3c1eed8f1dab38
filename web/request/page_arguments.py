"""Reads from the query of the current request which page of a list is wanted."""

from flask import request

from web.http.api_errors import invalid, invalid_field, quoted

_MAX_ID_CHARS = 100


def page_limit(default: int, most: int) -> int:
    """Return how many items the page may have; `limit` may be greater than `most`. Raises ApiError."""
    text = request.args.get("limit", str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) >= 1):
        raise invalid("limit", text, "a whole number from 1 to 99999")
    return min(int(text), most)


def page_after() -> str | None:
    """Return the id of the item behind which the page begins, or None for the first page. Raises ApiError."""
    text = request.args.get("after")
    if text is not None and not 1 <= len(text) <= _MAX_ID_CHARS:
        raise invalid_field("after", f"after={quoted(text)} is no id")
    return text


def oldest_first() -> bool:
    """Return whether the oldest items come first. Raises ApiError."""
    text = request.args.get("order", "desc")
    if text not in {"asc", "desc"}:
        raise invalid("order", text, "'asc' or 'desc'")
    return text == "asc"

"""Read an input that may be a text, several texts, a list of token ids or several such lists; pure functions."""

from typing import Annotated, Any

from pydantic import Field

from web.api.request_schema import MAX_TOKEN_ID
from web.http.api_errors import quoted

#: The schema of a list of token ids.
TokenIds = Annotated[list[Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]], Field(min_length=1)]


def read_inputs(value: Any, name: str, most: int) -> list[str | list[int]]:
    """Return the value of the field `name` as a list of at most `most` texts and lists of token ids.

    The checks of token ids are calls of C functions, so that a batch of 200,000 ids takes about 10 ms. Raises
    ValueError.
    """
    is_list = isinstance(value, list)
    inputs = [value] if not is_list or _are_tokens(value) else value
    if not 1 <= len(inputs) <= most:
        raise ValueError(f"{name} contains {len(inputs)} texts; 1 to {most} are allowed")
    for i, item in enumerate(inputs):
        where = f"{name}[{i}]" if is_list else name
        if isinstance(item, str):
            if not item or "\0" in item:
                raise ValueError(f"{where} is empty or contains a NUL character (\\u0000)")
        elif not isinstance(item, list) or not _are_tokens(item):
            raise ValueError(f"{where}={quoted(item)} is neither a text nor a list of token ids")
    return inputs


def _are_tokens(items: list[Any]) -> bool:
    """Return whether a list contains token ids and nothing else; false for an empty list."""
    return (
        len(items) > 0
        # bool is a subclass of int, but true is not a token id.
        and type(items[0]) is int
        and set(map(type, items)) == {int}
        and min(items) >= 0
        and max(items) <= MAX_TOKEN_ID
    )

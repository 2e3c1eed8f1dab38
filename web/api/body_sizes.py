"""Check the lengths of a body's lists and objects before pydantic validates their items; pure functions.

pydantic validates every item of a list that is too long, and builds an error for each invalid item. For a body of
1 MiB that takes up to a second of the door's loop. These checks take a millisecond.
"""

from collections.abc import Mapping
from typing import Any

from web.http.api_errors import invalid_field

#: How many fields a body, a message or an object of options may have. The API has no object with half as many.
MAX_FIELDS = 64


def check_sizes(value: Any, limits: Mapping[str, int], *, messages: str = "") -> None:
    """Check the number of fields of a body, and the lengths of the fields that `limits` names.

    `messages` is the name of the field with a list of messages, if the body has one. Values of a wrong type pass, since
    pydantic rejects them at once. Raises ApiError (invalid_value), which names the field and its length.
    """
    if not isinstance(value, dict):
        return
    _check_length("", value, MAX_FIELDS)
    for name, limit in limits.items():
        _check_length(name, value.get(name), limit)
    found = value.get(messages)
    for i, message in enumerate(found if isinstance(found, list) else ()):
        if isinstance(message, dict) and len(message) > MAX_FIELDS:
            _check_length(f"{messages}[{i}]", message, MAX_FIELDS)


def _check_length(name: str, value: Any, limit: int) -> None:
    if isinstance(value, dict | list) and len(value) > limit:
        kind = "fields" if isinstance(value, dict) else "items"
        message = f"{name or 'the body'} has {len(value)} {kind}; at most {limit} are allowed"
        raise invalid_field(name, message)

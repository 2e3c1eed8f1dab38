"""The JSON of a request body, parsed strictly; pure."""

from typing import Any

from pydantic_core import from_json

from web.http.api_errors import ApiError, invalid_value
from web.http.surrogates import refused_for


def parse_json(data: bytes) -> Any:
    """The JSON value of a body.

    Raises ApiError: invalid_json for what is none (bad UTF-8, NaN, bottomless nesting), invalid_value with the
    field's name for one with a text that holds half of a surrogate pair.
    """
    if not data.strip():
        raise ApiError("invalid_json", "the body is empty; a JSON object is expected")
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as error:
        refused = refused_for(data)
        if refused is not None:
            raise invalid_value([refused[1]]) from None
        raise ApiError("invalid_json", f"the body is not JSON: {error}") from None

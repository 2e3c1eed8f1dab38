"""Parse the JSON of a request body strictly; pure functions."""

from typing import Any

from pydantic_core import from_json

from web.http.api_errors import ApiError, invalid_value
from web.http.json_budget import check_budget
from web.http.surrogates import find_lone_surrogate


def parse_json(data: bytes) -> Any:
    """Return the JSON value of a body.

    Raises ApiError with code invalid_json if the body is not valid JSON, for example because of invalid UTF-8, NaN or
    excessive nesting, or if parsing its values would take too long (web/http/json_budget.py). If a string contains half
    of a surrogate pair, the code is invalid_value, and the error names the field.
    """
    if not data.strip():
        raise ApiError("invalid_json", "the body is empty; a JSON object is expected")
    check_budget(data)
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as error:
        found = find_lone_surrogate(data)
        if found is not None:
            raise invalid_value([found[1]]) from None
        raise ApiError("invalid_json", f"the body is not JSON: {error}") from None

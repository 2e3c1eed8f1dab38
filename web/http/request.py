"""The request as the door reads it: JSON only, bound in size, in UTF-8."""

import sys
from typing import Any

from flask import Request, request
from gunicorn.http.errors import ParseException  # type: ignore[import-untyped]  # ships no types
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from web.http.api_errors import ApiError
from web.http.json_body import parse_json


class DoorRequest(Request):
    """A request whose JSON is parsed strictly, whichever way it is asked for."""

    def get_json(self, force: bool = False, silent: bool = False, cache: bool = True) -> Any:  # noqa: ARG002 - Flask's signature
        """The body as JSON.

        Raises ApiError: 415 for another type, 413 when it is too long, 400 when it did not come whole or is no JSON.
        """
        if not self.is_json:
            given = self.mimetype or "nothing"
            raise ApiError(
                "unsupported_media_type", f"Content-Type is {given[:80]!r}; send application/json", param="Content-Type"
            )
        if "_door_json" not in self.__dict__:
            self.__dict__["_door_json"] = parse_json(self._whole_body())
        return self.__dict__["_door_json"]

    def _whole_body(self) -> bytes:
        try:
            data = self.get_data(cache=True)
        except ParseException as error:
            raise ApiError("invalid_request", f"the body is not chunked as Transfer-Encoding says: {error}") from error
        except ClientDisconnected:
            raise ApiError("invalid_request", "the body did not go on, or ended within a chunk") from None
        if self.content_length is None and len(data) >= (self.max_content_length or sys.maxsize):
            # A body of unknown length is read to the limit and no further: there may be more of it.
            raise RequestEntityTooLarge
        if self.content_length is not None and len(data) < self.content_length:
            raise ApiError("invalid_request", f"the body ended after {len(data)} of {self.content_length} bytes")
        return data


def retry_attempt() -> int:
    """How often the client has tried this request before, as it says itself; anything odd counts as 0."""
    text = request.headers.get("X-Attempt", request.headers.get("x-stainless-retry-count", "0"))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0

"""The request as the door reads it: JSON only, bound in size, in UTF-8."""

import sys
from typing import Any

from flask import Request, request
from werkzeug.exceptions import RequestEntityTooLarge

from web.problems import Problem
from web.schema import parse_json


class DoorRequest(Request):
    """A request whose JSON is parsed strictly, whichever way it is asked for."""

    def get_json(self, force: bool = False, silent: bool = False, cache: bool = True) -> Any:  # noqa: ARG002 - Flask's signature
        """The body as JSON. Raises Problem: 415 for another type, 413 when it is too long, 400 when it is no JSON."""
        if not self.is_json:
            given = self.mimetype or "nothing"
            raise Problem(
                "unsupported_media_type", f"Content-Type is {given[:80]!r}; send application/json", param="Content-Type"
            )
        if "_door_json" not in self.__dict__:
            data = self.get_data(cache=True)
            if self.content_length is None and len(data) >= (self.max_content_length or sys.maxsize):
                # A body of unknown length is read to the limit and no further: there may be more of it.
                raise RequestEntityTooLarge
            self.__dict__["_door_json"] = parse_json(data)
        return self.__dict__["_door_json"]


def attempt() -> int:
    """How often the client has tried this request before, as it says itself; anything odd counts as 0."""
    text = request.headers.get("X-Attempt", request.headers.get("x-stainless-retry-count", "0"))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0

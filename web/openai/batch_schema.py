"""Validate the bodies of `POST /v1/batches`; pure functions."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from web.api.body import Body, NulFreeText
from web.http.callback_url import CallbackUrl

_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])\Z")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MAX_WINDOW_MS = 7 * 86_400_000
#: The windows up to seven days as one pattern, by their units: days, hours, minutes, seconds.
_PATTERN = (
    r"^([1-7]d|([1-9][0-9]?|1[0-5][0-9]|16[0-8])h|([1-9][0-9]{0,3}|100[0-7][0-9]|10080)m"
    r"|([1-9][0-9]{0,4}|[1-5][0-9]{5}|60[0-3][0-9]{3}|604[0-7][0-9]{2}|604800)s)$"
)


def window_ms(text: str) -> int:
    """Return a completion window in ms. Raises ValueError for an invalid one."""
    found = _WINDOW.match(text)
    length_ms = int(found[1]) * _UNIT_MS[found[2]] if found else 0
    if not 0 < length_ms <= _MAX_WINDOW_MS:
        raise ValueError(f"completion_window={text[:60]!r} is not a time such as 24h, 30m or 7d, and at most 7d")
    return length_ms


def _check_window(text: str) -> str:
    window_ms(text)
    return text


Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
Window = Annotated[str, AfterValidator(_check_window), Field(json_schema_extra={"pattern": _PATTERN})]
MetadataName = Annotated[NulFreeText, Field(min_length=1, max_length=64)]
MetadataValue = Annotated[NulFreeText, Field(max_length=512)]


class BatchBody(Body):
    """The body of `POST /v1/batches`."""

    input_file_id: Annotated[NulFreeText, Field(min_length=1, max_length=100)]
    endpoint: Endpoint
    completion_window: Window
    metadata: Annotated[dict[MetadataName, MetadataValue], Field(max_length=16)] | None = None
    callback_url: CallbackUrl | None = None

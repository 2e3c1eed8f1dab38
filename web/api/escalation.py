"""The field `escalate` of a request: the checks whose failure moves the job to a later pool of the route."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from web.http.api_errors import ApiError


class Escalate(BaseModel):
    """The checks of an answer."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    checks: Annotated[list[Literal["invalid_json", "length"]], Field(min_length=1, max_length=2)] = Field(alias="if")


def checks_of(escalate: Escalate | None, *, streams: bool, candidates: int = 1) -> tuple[str, ...]:
    """Return the names of the checks.

    Raises ApiError for a stream, whose text is shown before it can be checked, and for a job with several candidates.
    """
    if escalate is None:
        return ()
    if candidates > 1:
        message = "escalate cannot be combined with n: the checks are those of one answer"
        raise ApiError("unsupported_parameter", message, param="escalate")
    if streams:
        message = "escalate cannot be combined with stream: an answer that has been shown cannot be replaced"
        raise ApiError("unsupported_parameter", message, param="escalate")
    return tuple(dict.fromkeys(escalate.checks))

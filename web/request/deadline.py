"""Read the deadline of the current Flask request from its body and its headers."""

from typing import Protocol

from flask import request

from web.api.deadline import AnswerMode, RequestDeadline, resolve_deadline
from web.http.api_errors import FieldError, invalid_value
from web.jobs.callers import Caller
from web.runtime.context import DoorContext


class DeadlineFields(Protocol):
    """A request body that may name a deadline and a start deadline, both in ms from now."""

    @property
    def deadline_ms(self) -> int | None:
        """The deadline: the time until the client needs the whole answer. None if the body has no deadline."""

    @property
    def start_within_ms(self) -> int | None:
        """The start deadline: the time until the client needs the first token. None if the body has none."""


def read_deadline(context: DoorContext, caller: Caller, body: DeadlineFields, mode: AnswerMode) -> RequestDeadline:
    """Return the deadline of the current request.

    Raises ApiError if the deadline in the request is malformed, or longer than the tenant's maximum.
    """
    deadline = resolve_deadline(
        mode,
        named_ms=body.deadline_ms,
        start_within_ms=body.start_within_ms,
        headers=request.headers,
        settings=context.settings,
        policy=caller.policy,
    )
    if isinstance(deadline, FieldError):
        raise invalid_value([deadline])
    return deadline

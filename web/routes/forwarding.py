"""Recognizes requests for models that an upstream serves, before the route validates their bodies."""

from flask import request

from web.jobs.openai_requests import forwarded_of
from web.openai.chat_answers import AnswerKind
from web.openai.forwarded_schema import ForwardedBody
from web.request.caller import current_caller
from web.runtime.current import current_context


def forwarded_body(kind: AnswerKind) -> ForwardedBody | None:
    """Return the body of the current request if its model is served by an upstream, otherwise None.

    Raises ApiError and StoreUnavailable.
    """
    return forwarded_of(current_context(), request.get_json(), kind, current_caller().policy)

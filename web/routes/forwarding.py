"""Recognizes requests for models that an upstream serves, before the route validates their bodies."""

from typing import Any

from flask import request
from pydantic import ValidationError

from web.http.api_errors import ApiError
from web.openai.chat_answers import AnswerKind
from web.openai.chat_schema import CompletionBody
from web.openai.forwarded_schema import ForwardedBody, read_forwarded
from web.openai.tools_schema import ChatWithTools
from web.operations.request_caller import current_caller
from web.runtime.current import current_context
from web.runtime.model_pools import FoundRoute


def forwarded_body(kind: AnswerKind) -> ForwardedBody | None:
    """Return the body of the current request if its model is served by an upstream, otherwise None.

    A route with other pools too is one of upstreams only for bodies that our own engine could not serve.

    A body that is no object, or names no model that the tenant may use, is left to the route. Raises ApiError and
    StoreUnavailable.
    """
    value = request.get_json()
    name = value.get("model") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not (name is None or isinstance(name, str)):
        return None
    try:
        target = current_context().pools.resolve_target(name, current_caller().policy)
    except ApiError:
        return None
    if not target.forwards and not (
        isinstance(target, FoundRoute) and target.may_forward and not _is_ours(value, kind)
    ):
        return None
    return read_forwarded(value, chat=kind == "chat")


def _is_ours(value: dict[str, Any], kind: AnswerKind) -> bool:
    """Return whether our own engine could serve a body. Only then may any pool of its route take the request."""
    try:
        (ChatWithTools if kind == "chat" else CompletionBody).model_validate(value)
    except (ApiError, ValidationError):
        return False
    return True

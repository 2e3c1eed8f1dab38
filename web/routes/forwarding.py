"""Recognizes requests for models that an upstream serves, before the route validates their bodies."""

from flask import request

from web.http.api_errors import ApiError
from web.openai.chat_answers import AnswerKind
from web.openai.forwarded_schema import ForwardedBody, read_forwarded
from web.operations.request_caller import current_caller
from web.runtime.current import current_context


def forwarded_body(kind: AnswerKind) -> ForwardedBody | None:
    """Return the body of the current request if its model is served by an upstream, otherwise None.

    A body that is no object, or names no model that the tenant may use, is left to the route. Raises ApiError and
    StoreUnavailable.
    """
    value = request.get_json()
    name = value.get("model") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not (name is None or isinstance(name, str)):
        return None
    try:
        model = current_context().pools.resolve(name, current_caller().policy)
    except ApiError:
        return None
    if not model.forwards:
        return None
    return read_forwarded(value, chat=kind == "chat")

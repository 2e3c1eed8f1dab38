"""Conversations of responses: a response that continues an earlier one, and the end of one that is deleted.

A response that is stored keeps its request, which has the whole conversation before its answer. So a request that
continues it needs nothing else, whatever became of the responses before (docs/adr/0073-conversations-are-copied.md).
"""

import json
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from shared.jobs.states import JobState
from web.api.request_schema import MAX_MESSAGES
from web.http.api_errors import ApiError, invalid_field, quoted
from web.jobs.generation import GenerationRequest
from web.jobs.tenant_jobs import erase_job, find_job
from web.openai.chat_answers import parts_of
from web.openai.message_parts import message_fields, without_old_reasoning
from web.openai.responses_answers import PREFIX, is_response, status_of
from web.runtime.context import DoorContext

_FIELD = "previous_response_id"


def continued(context: DoorContext, tenant: str, request: GenerationRequest, held: ExitStack) -> GenerationRequest:
    """Return the request for a response with the conversation before it, which follows its own instructions.

    A response that continues a private one is private too, because it repeats that one's prompt. Until `held` is
    closed, the conversation counts as a body of the tenant that the door reads. Raises ApiError if the tenant has no
    such earlier response, or if it cannot be continued, or if the bodies that the door reads are too many, and
    StoreUnavailable.
    """
    previous = request.form["previous"]
    if previous is None:
        return request
    earlier, is_private = _conversation(context, tenant, previous, held)
    own_system, own = 1 if request.form["instructed"] else 0, request.payload["messages"]
    messages = without_old_reasoning([*own[:own_system], *earlier, *own[own_system:]])
    _check_size(context, previous, messages)
    payload = request.payload | {"messages": messages}
    return replace(request, payload=payload, private=request.private or is_private)


def find_response(context: DoorContext, response_id: str, tenant: str | None) -> JobView | None:
    """Return the job of a response; None if the tenant has no such response. The read counts as a poll."""
    view = find_job(context, response_id.removeprefix(PREFIX), tenant) if response_id.startswith(PREFIX) else None
    return view if view is not None and is_response(view) else None


def delete_response(context: DoorContext, view: JobView) -> None:
    """Delete the text and the request of a response that has ended; it can no longer be read. Raises StoreUnavailable.

    Its job stays in the tenant's list until it expires, without a text.
    """
    erase_job(context, view, form=json.dumps(view.form | {"store": False}, separators=(",", ":")))


def forget_unstored(context: DoorContext, view: JobView) -> None:
    """Delete the text of a response that is not to be stored, when its client is about to have it.

    If the store does not answer, the text cannot be read either, and expires like any result.
    """
    if view.form.get("store") is False:
        with suppress(StoreUnavailable):
            erase_job(context, view)


def _conversation(
    context: DoorContext, tenant: str, response_id: str, held: ExitStack
) -> tuple[list[dict[str, Any]], bool]:
    """Return the messages of an earlier response and of its answer, without its instructions; and if it is private."""
    view = find_response(context, response_id, tenant)
    if view is not None and view.state is not JobState.SUCCEEDED:
        message = f"{_FIELD}={quoted(response_id)} cannot be continued: its status is {status_of(view)}"
        raise invalid_field(_FIELD, message)
    if view is not None:
        # No longer conversation is offered, and more than the longest body might never fit.
        n_bytes = min(context.store.kept_request_bytes(view.id), context.settings.max_body_bytes)
        held.callback(context.request_bounds.open_body(tenant, n_bytes))
    request = None if view is None else context.store.kept_request(view.id)
    if view is None or view.text is None or request is None or not isinstance(request.get("messages"), list):
        message = f"{_FIELD}={quoted(response_id)} was not found"
        raise ApiError("previous_response_not_found", message, param=_FIELD)
    answer = message_fields(parts_of(view), view.id)
    own_system = 1 if view.form.get("instructed") else 0
    said = {"role": "assistant"} | answer | {"content": answer["content"] or ""}
    return [*request["messages"][own_system:], said], view.private


def _check_size(context: DoorContext, previous: str, messages: list[dict[str, Any]]) -> None:
    """Raise ApiError if the conversation is longer than one that a client could send whole."""
    n_bytes, most = len(json.dumps(messages, ensure_ascii=False).encode()), context.settings.max_body_bytes
    if len(messages) > MAX_MESSAGES or n_bytes > most:
        message = (
            f"{_FIELD}={quoted(previous)}: the conversation would have {len(messages)} messages and {n_bytes} bytes, "
            f"and may have {MAX_MESSAGES} and {most}"
        )
        raise invalid_field(_FIELD, message)

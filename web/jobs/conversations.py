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
from web.api.file_search import NO_TEXTS, SearchedFiles, SearchTexts
from web.api.job_json import has_ended
from web.api.own_words import own_messages
from web.api.request_schema import MAX_MESSAGES
from web.http.api_errors import ApiError, invalid_field, quoted
from web.jobs.generation import GenerationRequest
from web.jobs.tenant_jobs import erase_job, find_job
from web.openai.chat_answers import message_fields, parts_of, without_old_reasoning
from web.openai.responses_answers import (
    PREFIX,
    input_items,
    is_response,
    jobs_of,
    namespaces_in,
    referenced_id,
    response_json,
    status_of,
)
from web.runtime.context import DoorContext

_FIELD = "previous_response_id"


def continued(context: DoorContext, tenant: str, request: GenerationRequest, held: ExitStack) -> GenerationRequest:
    """Return the request for a response with the conversation before it, which follows its own instructions.

    The conversation has no passages, which belong to the question that they were found for. A response that continues a
    private one is private too, because it repeats that one's prompt. Until `held` is
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


def search_texts(context: DoorContext, view: JobView, *, streams: bool) -> SearchTexts:
    """Return the texts of a response's search for files, if it has any to show yet. Raises ApiError, StoreUnavailable.

    They are kept with the request, so they are gone if that is.
    """
    if SearchedFiles.read(view) is None or not (streams or has_ended(view)):
        return NO_TEXTS
    with ExitStack() as held:
        store = context.of_job(view.id).store
        n_bytes = min(store.kept_request_bytes(view.id), context.settings.max_body_bytes)
        held.callback(context.request_bounds.open_body(view.tenant, n_bytes))
        return SearchTexts.read(store.kept_request(view.id))


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
    view, store = find_response(context, response_id, tenant), context.of_job(response_id.removeprefix(PREFIX)).store
    if view is not None and view.state is not JobState.SUCCEEDED:
        message = f"{_FIELD}={quoted(response_id)} cannot be continued: its status is {status_of(view)}"
        raise invalid_field(_FIELD, message)
    if view is not None:
        # No longer conversation is offered, and more than the longest body might never fit.
        n_bytes = min(store.kept_request_bytes(view.id), context.settings.max_body_bytes)
        held.callback(context.request_bounds.open_body(tenant, n_bytes))
    request = None if view is None else store.kept_request(view.id)
    if view is None or view.text is None or request is None or not isinstance(request.get("messages"), list):
        raise ApiError("previous_response_not_found", f"{_FIELD}={quoted(response_id)} was not found", param=_FIELD)
    answer = message_fields(parts_of(view), view.id)
    own_system = 1 if view.form.get("instructed") else 0
    said = {"role": "assistant"} | answer | {"content": answer["content"] or ""}
    return [*own_messages(request)[own_system:], said], view.private


def _check_size(context: DoorContext, previous: str, messages: list[dict[str, Any]]) -> None:
    """Raise ApiError if the conversation is longer than one that a client could send whole."""
    n_bytes, most = len(json.dumps(messages, ensure_ascii=False).encode()), context.settings.max_body_bytes
    if len(messages) > MAX_MESSAGES or n_bytes > most:
        message = (
            f"{_FIELD}={quoted(previous)}: the conversation would have {len(messages)} messages and {n_bytes} bytes, "
            f"and may have {MAX_MESSAGES} and {most}"
        )
        raise invalid_field(_FIELD, message)


#: The most responses whose items a request may name, because each of them is read from the store.
MAX_REFERENCED = 512


def with_referenced_items(context: DoorContext, tenant: str, value: Any, held: ExitStack) -> Any:
    """Return a body of `/v1/responses` whose references are replaced by the items that they name.

    A request that repeats items of a private response is private too. Until `held` is closed, the items count as a body
    of the tenant that the door reads. Raises ApiError if the tenant has no such item, or if they would be longer than
    the longest body, and StoreUnavailable.
    """
    items = value.get("input") if isinstance(value, dict) else None
    if not isinstance(items, list) or len(items) > MAX_MESSAGES:
        return value
    wanted = [referenced_id(item) for item in items]
    if all(item_id is None for item_id in wanted):
        return value
    found = _Referenced(context, tenant, held)
    resolved = [
        item if item_id is None else found.item(item_id, f"input[{i}].id")
        for i, (item, item_id) in enumerate(zip(items, wanted, strict=True))
    ]
    return value | {"input": resolved} | ({"private": True} if found.is_private else {})


def items_of_input(context: DoorContext, view: JobView, held: ExitStack) -> list[dict[str, Any]]:
    """Return the items of a response's input, without its instructions, in their order.

    Raises ApiError if they are no longer kept, and StoreUnavailable.
    """
    store = context.of_job(view.id).store
    n_bytes = min(store.kept_request_bytes(view.id), context.settings.max_body_bytes)
    held.callback(context.request_bounds.open_body(view.tenant, n_bytes))
    request = store.kept_request(view.id)
    if request is None or not isinstance(request.get("messages"), list):
        raise ApiError("job_not_found", f"the input of response {PREFIX + view.id!r} is not kept")
    own_system = 1 if view.form.get("instructed") else 0
    return input_items(view.id, own_messages(request)[own_system:], namespaces_in(view))


class _Referenced:
    def __init__(self, context: DoorContext, tenant: str, held: ExitStack) -> None:
        self._context, self._tenant, self._held = context, tenant, held
        self._views: dict[str, JobView | None] = {}
        #: The items of each job that was read, by their ids, with their lengths in bytes.
        self._items: dict[tuple[str, bool], dict[str, tuple[dict[str, Any], int]]] = {}
        self._bytes = 0
        self.is_private = False

    def item(self, item_id: Any, where: str) -> dict[str, Any]:
        """Return the item with this id. Raises ApiError."""
        for job_id, is_input in jobs_of(item_id) if isinstance(item_id, str) else []:
            view = self._view(job_id, where)
            items = {} if view is None else self._items_of(view, is_input=is_input)
            if view is None or item_id not in items:
                continue
            item, n_bytes = items[item_id]
            self._bytes += n_bytes
            if self._bytes > self._context.settings.max_body_bytes:
                most = self._context.settings.max_body_bytes
                raise invalid_field(where, f"{where}: the items of the input have more than {most} bytes")
            self.is_private = self.is_private or view.private
            return item
        raise ApiError("previous_response_not_found", f"{where}={quoted(item_id)} was not found", param=where)

    def _view(self, job_id: str, where: str) -> JobView | None:
        if job_id not in self._views:
            if len(self._views) >= MAX_REFERENCED:
                message = f"{where}: the input refers to items of more than {MAX_REFERENCED} responses"
                raise invalid_field(where, message)
            self._views[job_id] = find_response(self._context, PREFIX + job_id, self._tenant)
        return self._views[job_id]

    def _items_of(self, view: JobView, *, is_input: bool) -> dict[str, tuple[dict[str, Any], int]]:
        if (view.id, is_input) not in self._items:
            if is_input:
                items = items_of_input(self._context, view, self._held)
            else:
                n_bytes = min(len(view.text or ""), self._context.settings.max_body_bytes)
                self._held.callback(self._context.request_bounds.open_body(self._tenant, n_bytes))
                items = response_json(view)["output"]
            sized = {item["id"]: (item, len(json.dumps(item, ensure_ascii=False).encode())) for item in items}
            self._items[view.id, is_input] = sized
        return self._items[view.id, is_input]

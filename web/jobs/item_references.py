"""Items of earlier responses: those of a response's input, and those that a request names by their ids."""

import json
from contextlib import ExitStack
from typing import Any

from shared.jobs.job import JobView
from web.api.request_schema import MAX_MESSAGES
from web.http.api_errors import ApiError, invalid_field, quoted
from web.jobs.conversations import find_response
from web.openai.response_items import input_items, jobs_of, referenced_id
from web.openai.responses_answers import PREFIX, namespaces_in, response_json
from web.runtime.context import DoorContext

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
    n_bytes = min(context.store.kept_request_bytes(view.id), context.settings.max_body_bytes)
    held.callback(context.request_bounds.open_body(view.tenant, n_bytes))
    request = context.store.kept_request(view.id)
    messages = request.get("messages") if request is not None else None
    if not isinstance(messages, list):
        raise ApiError("job_not_found", f"the input of response {PREFIX + view.id!r} is not kept")
    own_system = 1 if view.form.get("instructed") else 0
    return input_items(view.id, messages[own_system:], namespaces_in(view))


class _Referenced:
    """The items that one request names."""

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
        message = f"{where}={quoted(item_id)} was not found"
        raise ApiError("previous_response_not_found", message, param=where)

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

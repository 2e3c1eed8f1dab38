"""What clients can do with batches and files that are stored: create, read, list, cancel, delete."""

import json
import secrets
from collections.abc import Iterator

from shared.store.batches.batches import Batches, NotCreated, StoredBatch
from shared.store.batches.files import Deletion, Files, StoredFile
from web.http.api_errors import ApiError
from web.openai.batches.batch_schema import BatchBody, window_ms
from web.operations.callers import Caller
from web.operations.webhooks.submitted import check_callback
from web.runtime.context import DoorContext


def create_batch(context: DoorContext, caller: Caller, body: BatchBody) -> StoredBatch:
    """Create a batch. Raises ApiError and StoreUnavailable."""
    fields = {
        "endpoint": body.endpoint,
        "window": body.completion_window,
        "key_label": caller.key_label,
        "key_digest": caller.key_digest,
    }
    if body.metadata is not None:
        fields["metadata"] = json.dumps(body.metadata, ensure_ascii=False)
    if body.callback_url is not None:
        check_callback(context.store.client, context.settings, caller.tenant, body.callback_url)
        fields["callback_url"] = body.callback_url
    created = Batches(context.store.client).create(
        f"batch_{secrets.token_hex(12)}",
        caller.tenant,
        body.input_file_id,
        fields,
        window_ms=window_ms(body.completion_window),
        ttl_s=context.settings.file_ttl_s,
    )
    if created is NotCreated.NO_FILE:
        raise _no_file(body.input_file_id, "input_file_id")
    if created is NotCreated.SHORT_FILE:
        message = f"file {body.input_file_id[:80]!r} expires before completion_window={body.completion_window!r} ends"
        raise ApiError("invalid_request", message, param="input_file_id")
    if isinstance(created, NotCreated):
        message = f"tenant {caller.tenant!r} has as many open batches as it may have; wait until one has ended"
        raise ApiError("batches_full", message)
    return created


def read_batch(context: DoorContext, tenant: str, batch_id: str) -> StoredBatch:
    """Return a batch of the tenant. Raises ApiError and StoreUnavailable."""
    found = Batches(context.store.client).find(batch_id, tenant)
    if found is None:
        raise _no_batch(batch_id)
    return found


def cancel_batch(context: DoorContext, tenant: str, batch_id: str) -> StoredBatch:
    """Ask for the end of a batch, and return it. Raises ApiError and StoreUnavailable."""
    if not Batches(context.store.client).cancel(batch_id, tenant):
        raise _no_batch(batch_id)
    return read_batch(context, tenant, batch_id)


def list_batches(context: DoorContext, tenant: str, *, limit: int, after: str | None) -> tuple[list[StoredBatch], bool]:
    """Return a page of the tenant's batches, and whether there are more. Raises StoreUnavailable."""
    return Batches(context.store.client).page(tenant, limit=limit, after=after)


def list_files(
    context: DoorContext, tenant: str, *, limit: int, after: str | None, oldest_first: bool
) -> tuple[list[StoredFile], bool]:
    """Return a page of the tenant's files, and whether there are more. Raises StoreUnavailable."""
    return Files(context.store.client).page(tenant, limit=limit, after=after, oldest_first=oldest_first)


def read_file(context: DoorContext, tenant: str, file_id: str) -> StoredFile:
    """Return a file of the tenant. Raises ApiError and StoreUnavailable."""
    found = Files(context.store.client).find(file_id, tenant)
    if found is None:
        raise _no_file(file_id, None)
    return found


def file_content(context: DoorContext, file: StoredFile) -> Iterator[bytes]:
    """Yield the bytes of a file, part by part. Raises StoreUnavailable, and LookupError if a part is gone."""
    return Files(context.store.client).read(file)


def delete_file(context: DoorContext, tenant: str, file_id: str) -> None:
    """Delete a file. Raises ApiError and StoreUnavailable."""
    answer = Files(context.store.client).delete(file_id, tenant)
    if answer is Deletion.GONE:
        raise _no_file(file_id, None)
    if answer is Deletion.USED:
        raise ApiError("file_in_use", f"a batch that has not ended reads file {file_id[:80]!r}; cancel it first")


def _no_file(file_id: str, param: str | None) -> ApiError:
    return ApiError("file_not_found", f"there is no file {file_id[:80]!r}", param=param)


def _no_batch(batch_id: str) -> ApiError:
    return ApiError("batch_not_found", f"there is no batch {batch_id[:80]!r}")

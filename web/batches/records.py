"""The operations on stored batches and files, the body that creates a batch, and both as OpenAI's JSON objects."""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from shared.cells.stored_ids import prefix_in_cell
from shared.store.batches.batches import ID_PREFIX, Batches, BatchStatus, NotCreated, StoredBatch, TooManyOpen
from shared.store.batches.files import ID_PREFIX as FILE_PREFIX
from shared.store.batches.files import Deletion, NoRoom, StoredFile, Whose
from shared.store.batches.repeats import Repeats
from shared.store.repeat_lookup import EarlierRequest
from web.api.body import Body, NulFreeText
from web.api.job_json import webhook_state
from web.batches.cells import check_takes_batches, page_of_all
from web.http.api_errors import ApiError, invalid_field
from web.http.callback_url import CallbackUrl
from web.jobs.admission import check_callback
from web.jobs.callers import Caller
from web.jobs.spilling import other_cell_of_repeat
from web.runtime.context import DoorContext

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


#: After how many seconds a client may send a request again that found the folder of files unusable.
_FILES_RETRY_S = 30


def create_batch(context: DoorContext, caller: Caller, body: BatchBody, repeats: Repeats) -> StoredBatch:
    """Create a batch in the cell of its input file, or find the one that an earlier request like this has created.

    Raises ApiError and StoreUnavailable.
    """
    earlier = EarlierRequest(repeats.idem_digest)
    context = _cell_of_batch(context, caller.tenant, body.input_file_id, earlier)
    fields = {
        "endpoint": body.endpoint,
        "window": body.completion_window,
        "key_label": caller.key_label,
        "key_digest": caller.key_digest,
    }
    if body.metadata is not None:
        fields["metadata"] = json.dumps(body.metadata, ensure_ascii=False)
    if body.callback_url is not None:
        check_callback(context.store.client, context.settings, caller.tenant, body.callback_url, earlier)
        fields["callback_url"] = body.callback_url
    file = context.files.find(body.input_file_id, caller.tenant)
    if file is not None and file.purpose != "batch":
        message = f"file {file.id!r} has purpose {file.purpose!r}; upload it for 'batch'"
        raise invalid_field("input_file_id", message)
    batches = Batches(context.store.client)
    created = batches.create(
        batches.new_id(prefix_in_cell(ID_PREFIX, context.cell)),
        caller.tenant,
        body.input_file_id,
        fields,
        window_ms=window_ms(body.completion_window),
        ttl_s=context.settings.file_ttl_s,
        repeats=repeats,
    )
    if isinstance(created, StoredBatch):
        return created
    raise _not_created(created, caller.tenant, body)


def _cell_of_batch(context: DoorContext, tenant: str, file_id: str, earlier: EarlierRequest) -> DoorContext:
    """Return the context of the cell with the input file, or of the one with the batch that a request repeats.

    Raises ApiError if that cell drains, and StoreUnavailable.
    """
    place = context.of_stored(file_id)
    if earlier.idem_digest:
        kept_ms = _MAX_WINDOW_MS + context.settings.file_ttl_s * 1_000
        found = other_cell_of_repeat(place, tenant, context, lambda _: earlier, kept_ms=kept_ms)
        if found is not None:
            return found
    if not (earlier.idem_digest and place.drains and earlier.was_admitted(place.store.client, tenant)):
        check_takes_batches(place, file_id)
    return place


def _not_created(why: NotCreated | TooManyOpen | NoRoom, tenant: str, body: BatchBody) -> ApiError:
    if isinstance(why, NoRoom):
        return no_room_error(why, tenant, param=None)
    if isinstance(why, TooManyOpen):
        message = f"tenant {tenant!r} has {why.open} of {why.most} open batches; wait until one has ended"
        limits = {"limit": "tenant_open_batches", "value": why.open, "max": why.most}
        return ApiError("batches_full", message, limits=limits)
    if why is NotCreated.NO_FILE:
        return _no_file(body.input_file_id, "input_file_id")
    if why is NotCreated.MISMATCH:
        message = "this Idempotency-Key was already used for a batch, with a different request body"
        return ApiError("idempotency_mismatch", message, param="Idempotency-Key")
    message = f"file {body.input_file_id[:80]!r} expires before completion_window={body.completion_window!r} ends"
    return ApiError("invalid_request", message, param="input_file_id")


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
    """Return a page of the tenant's batches, and whether there are more. Raises ApiError and StoreUnavailable."""

    def read(cell: DoorContext, begin: str | None) -> tuple[list[StoredBatch], bool]:
        return Batches(cell.store.client).page(tenant, limit=limit, after=begin)

    return page_of_all(context, tenant, read, prefix=ID_PREFIX, limit=limit, after=after)


def list_files(
    context: DoorContext, tenant: str, *, limit: int, after: str | None, oldest_first: bool, purpose: str
) -> tuple[list[StoredFile], bool]:
    """Return a page of the tenant's files, and whether there are more. Raises ApiError and StoreUnavailable.

    If `purpose` is not empty, only files with this purpose are listed.
    """

    def read(cell: DoorContext, begin: str | None) -> tuple[list[StoredFile], bool]:
        return cell.files.page(tenant, limit=limit, after=begin, oldest_first=oldest_first, purpose=purpose)

    return page_of_all(context, tenant, read, prefix=FILE_PREFIX, limit=limit, after=after, oldest_first=oldest_first)


def read_file(context: DoorContext, tenant: str, file_id: str) -> StoredFile:
    """Return a file of the tenant. Raises ApiError and StoreUnavailable."""
    found = context.files.find(file_id, tenant)
    if found is None:
        raise _no_file(file_id, None)
    return found


def file_content(context: DoorContext, file: StoredFile) -> Iterator[bytes]:
    """Return the bytes of a file, part by part.

    Raises ApiError if the first part is gone, FilesUnavailable and StoreUnavailable.

    The iterator raises LookupError if a later part is gone.
    """
    parts = context.files.read(file)
    try:
        first = next(parts, b"")
    except LookupError:
        raise ApiError("file_not_found", f"the content of file {file.id!r} is gone") from None
    return itertools.chain((first,), parts)


def delete_file(context: DoorContext, tenant: str, file_id: str) -> None:
    """Delete a file. Raises ApiError and StoreUnavailable."""
    answer = context.files.delete(file_id, tenant)
    if answer is Deletion.GONE:
        raise _no_file(file_id, None)
    if answer is Deletion.USED:
        raise ApiError("file_in_use", f"a batch that has not ended reads file {file_id[:80]!r}; cancel it first")


def no_room_error(no_room: NoRoom, tenant: str, *, param: str | None) -> ApiError:
    """Return the error for a file or a batch for which there are no bytes left."""
    limits = {"value": no_room.taken, "max": no_room.most}
    if no_room.whose is Whose.ALL:
        message = f"the files of all tenants take {no_room.taken} of {no_room.most} bytes (PENSTOCK_MAX_FILES_BYTES)"
        return ApiError("files_full", message, param=param, limits={"limit": "files_bytes"} | limits)
    message = f"the jobs and files of tenant {tenant!r} take {no_room.taken} of {no_room.most} bytes"
    return ApiError("file_bytes_full", message, param=param, limits={"limit": "tenant_bytes"} | limits)


def files_unavailable(*, is_full: bool) -> ApiError:
    """Return the error while the folder with the contents of files cannot be used, because its disk `is_full` or not.

    The answer to a full disk asks for no retry: each would send the whole file again.
    """
    if is_full:
        return ApiError("files_unavailable", "the disk with the contents of files is full; an operator has to free it")
    message = f"the contents of files cannot be written or read now; retry in {_FILES_RETRY_S} s"
    headers = {"Retry-After": str(_FILES_RETRY_S), "x-should-retry": "true"}
    return ApiError("files_unavailable", message, headers=headers)


def _no_file(file_id: str, param: str | None) -> ApiError:
    return ApiError("file_not_found", f"there is no file {file_id[:80]!r}", param=param)


def _no_batch(batch_id: str) -> ApiError:
    return ApiError("batch_not_found", f"there is no batch {batch_id[:80]!r}")


_TIMES = {
    "in_progress_at": BatchStatus.IN_PROGRESS,
    "finalizing_at": BatchStatus.FINALIZING,
    "completed_at": BatchStatus.COMPLETED,
    "failed_at": BatchStatus.FAILED,
    "expired_at": BatchStatus.EXPIRED,
    "cancelling_at": BatchStatus.CANCELLING,
    "cancelled_at": BatchStatus.CANCELLED,
}


def file_json(file: StoredFile) -> dict[str, Any]:
    """Return OpenAI's object of a file."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_ms // 1000,
        "expires_at": file.expires_ms // 1000,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }


def batch_json(batch: StoredBatch) -> dict[str, Any]:
    """Return OpenAI's object of a batch."""
    completed, failed = batch.number("completed"), batch.number("failed")
    problems = batch.json("errors", None)
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.fields.get("endpoint", ""),
        "errors": {"object": "list", "data": problems} if isinstance(problems, list) else None,
        "input_file_id": batch.fields.get("input_file", ""),
        "completion_window": batch.fields.get("window", ""),
        "status": batch.status,
        "output_file_id": batch.fields.get("output_file"),
        "error_file_id": batch.fields.get("error_file"),
        "created_at": batch.number("created_ms") // 1000,
        "expires_at": batch.number("expires_ms") // 1000,
        **{name: _seconds(batch, f"{status}_ms") for name, status in _TIMES.items()},
        "request_counts": {"total": batch.number("total"), "completed": completed, "failed": failed},
        "metadata": batch.json("metadata", None),
    } | webhook_state(batch.fields.get("callback_url", ""), batch.fields.get("webhook", ""))


def _seconds(batch: StoredBatch, name: str) -> int | None:
    return batch.number(name) // 1000 if name in batch.fields else None

"""Adds uploaded files to vector stores, to be loaded soon; lists, reads, changes and removes them."""

import itertools
import secrets
import time
from collections.abc import Iterator, Sequence

from shared.retrieval.file_records import FileBatch, FileCounts, NewFile, StoreFile
from shared.retrieval.pages import Page
from shared.retrieval.records import Collection
from web.http.api_errors import ApiError, invalid_field, quoted
from web.jobs.callers import Caller
from web.retrieval.access import check_chunk_tokens, database_of, forget_passages, store_errors
from web.retrieval.embedding import embedding_model
from web.runtime.context import DoorContext
from web.vector_stores.bodies import AddFileBody, ChunkingStrategy

#: The purposes of files that can be added to a store.
PURPOSES = ("assistants", "user_data")
#: The ids of batches of files begin with this.
_BATCH_PREFIX = "vsfb_"
#: The chunks that are read at once.
_CHUNKS = 200


def files_of_ids(
    context: DoorContext, caller: Caller, file_ids: Sequence[str], strategy: ChunkingStrategy | None
) -> list[NewFile]:
    """Return the files with these ids to be added with the same settings. Raises ApiError and StoreUnavailable."""
    bodies = [AddFileBody.model_construct(file_id=each, chunking_strategy=strategy) for each in file_ids]
    return new_files(context, caller, bodies, "file_ids[{}]")


def new_files(context: DoorContext, caller: Caller, bodies: Sequence[AddFileBody], param: str) -> list[NewFile]:
    """Return the uploaded files that these bodies name. `param` is the path of an id, with {} for its number.

    Raises ApiError and StoreUnavailable.
    """
    found = dict[str, NewFile]()
    for number, body in enumerate(bodies):
        path = param.format(number)
        if body.file_id in found:
            raise invalid_field(path, f"{path}={quoted(body.file_id)} is there twice")
        file = context.of_stored(body.file_id).files.find(body.file_id, caller.tenant)
        if file is None:
            raise ApiError("file_not_found", f"there is no file {body.file_id[:80]!r}", param=path)
        if file.purpose not in PURPOSES:
            message = f"{path}: file {file.id!r} has purpose {file.purpose!r}; upload it for {' or '.join(PURPOSES)}"
            raise invalid_field(path, message)
        most = context.settings.max_document_bytes
        if file.bytes > most:
            message = f"{path}: file {file.id!r} has {file.bytes} bytes; at most {most} (PENSTOCK_MAX_DOCUMENT_BYTES)"
            raise invalid_field(path, message)
        sizes = None if body.chunking_strategy is None else body.chunking_strategy.static
        found[file.id] = NewFile(
            file.id,
            file.filename,
            body.attributes or {},
            None if sizes is None else sizes.max_chunk_size_tokens,
            None if sizes is None else sizes.chunk_overlap_tokens,
        )
    return list(found.values())


def add_files(
    context: DoorContext, caller: Caller, collection: Collection, files: Sequence[NewFile], *, batch: str | None
) -> list[StoreFile]:
    """Add files to a vector store; a door process loads them soon. Raises ApiError and StoreUnavailable."""
    most_tokens = max((file.chunk_tokens or 0 for file in files), default=0)
    if most_tokens and collection.model is not None:
        model = embedding_model(context, caller, collection.model)
        check_chunk_tokens(model, most_tokens, "chunking_strategy.static.max_chunk_size_tokens")
    with store_errors(caller.tenant, collection.store_id):
        added = database_of(context).files.add(
            caller.tenant,
            collection.name,
            files,
            batch=batch,
            key=(caller.key_label, caller.key_digest),
            most=context.settings.max_tenant_documents,
        )
    context.files_wait.set()
    return added


def add_batch(context: DoorContext, caller: Caller, collection: Collection, files: Sequence[NewFile]) -> FileBatch:
    """Add files to a vector store as a batch. Raises ApiError and StoreUnavailable."""
    batch = f"{_BATCH_PREFIX}{time.time_ns() // 1_000_000:011x}{secrets.token_hex(7)[:13]}"
    added = add_files(context, caller, collection, files, batch=batch)
    # Its files may have been removed or added again by now, and then a look-up would not find it.
    return FileBatch(batch, min(each.added_ms for each in added), FileCounts(in_progress=len(added)))


def list_files(
    context: DoorContext, collection: Collection, wanted: Page, *, state: str | None, batch: str | None = None
) -> tuple[list[StoreFile], bool]:
    """Return a page of the files of a vector store, and whether there are more. Raises ApiError."""
    with store_errors(collection.tenant, collection.store_id):
        return database_of(context).files.page(collection.tenant, collection.name, wanted, state=state, batch=batch)


def read_file(context: DoorContext, collection: Collection, file_id: str) -> StoreFile:
    """Return a file of a vector store. Raises ApiError."""
    with store_errors(collection.tenant, collection.store_id):
        found = database_of(context).files.find(collection.tenant, collection.name, _checked(collection, file_id))
    if found is None:
        raise _no_file(collection, file_id)
    return found


def change_file(
    context: DoorContext, collection: Collection, file_id: str, attributes: dict[str, str | float | bool]
) -> StoreFile:
    """Replace the attributes of a file of a vector store. Raises ApiError."""
    _checked(collection, file_id)
    database, tenant = database_of(context), collection.tenant
    with store_errors(tenant, collection.store_id):
        document = database.document(tenant, collection.name, file_id)
        chunks = 0 if document is None else document.chunks
        found = database.files.change(tenant, collection.name, file_id, attributes, chunks)
    if found is None:
        raise _no_file(collection, file_id)
    context.files_wait.set()
    return found


def remove_file(context: DoorContext, collection: Collection, file_id: str) -> None:
    """Remove a file from a vector store, with what was loaded from it. Raises ApiError."""
    _checked(collection, file_id)
    with store_errors(collection.tenant, collection.store_id):
        removed = database_of(context).delete_document(collection.tenant, collection.name, file_id)
    if not removed:
        raise _no_file(collection, file_id)
    forget_passages(context, collection.tenant)


def chunk_texts(context: DoorContext, collection: Collection, file_id: str) -> Iterator[str]:
    """Return the texts of a file's chunks, which are read while they are sent. Raises ApiError."""
    read_file(context, collection, file_id)

    def read(first: int) -> list[str]:
        database, tenant = database_of(context), collection.tenant
        with store_errors(tenant, collection.store_id):
            found = database.chunks(tenant, collection.name, file_id, first=first, limit=_CHUNKS)
        return [each.text for each in found]

    texts = read(0)

    def rest() -> Iterator[str]:
        first, read_last = _CHUNKS, len(texts)
        while read_last == _CHUNKS:
            more = read(first)
            first, read_last = first + _CHUNKS, len(more)
            yield from more

    return itertools.chain(texts, rest())


def read_batch(context: DoorContext, collection: Collection, batch: str) -> FileBatch:
    """Return a batch of files. Raises ApiError."""
    with store_errors(collection.tenant, collection.store_id):
        found = database_of(context).files.batch(collection.tenant, collection.name, _checked_batch(batch))
    return _known(found, batch)


def cancel_batch(context: DoorContext, collection: Collection, batch: str) -> FileBatch:
    """Cancel the files of a batch that are not loaded yet. Raises ApiError."""
    with store_errors(collection.tenant, collection.store_id):
        found = database_of(context).files.cancel_batch(collection.tenant, collection.name, _checked_batch(batch))
    return _known(found, batch)


def _known(found: FileBatch | None, batch: str) -> FileBatch:
    if found is None:
        raise ApiError("batch_not_found", f"the vector store has no batch of files {batch[:80]!r}")
    return found


def _checked(collection: Collection, file_id: str) -> str:
    """Return the id of a file. Raises ApiError if the database could not even read it."""
    if not file_id.isprintable():
        raise _no_file(collection, file_id)
    return file_id


def _checked_batch(batch: str) -> str:
    if not batch.isprintable():
        raise ApiError("batch_not_found", f"the vector store has no batch of files {batch[:80]!r}")
    return batch


def _no_file(collection: Collection, file_id: str) -> ApiError:
    return ApiError("file_not_found", f"vector store {collection.store_id} has no file {file_id[:80]!r}")

"""Creates, lists, changes and deletes vector stores: a store is a collection of the tenant."""

from typing import Any

from shared.errors import StoreUnavailable
from shared.retrieval.file_records import FileCounts
from shared.retrieval.pages import Page
from shared.retrieval.records import Collection, NewCollection
from web.http.api_errors import ApiError
from web.jobs.callers import Caller
from web.retrieval.access import (
    database_errors,
    database_of,
    delete_collection,
    model_of,
    store_errors,
    vector_store_of,
)
from web.retrieval.bodies import CollectionBody
from web.runtime.context import DoorContext
from web.vector_stores.bodies import ChangeStoreBody, CreateStoreBody
from web.vector_stores.files import add_files, files_of_ids

#: The settings of collections that stores have too.
_LANGUAGE, _CHUNK_TOKENS, _OVERLAP_TOKENS = (
    CollectionBody.model_fields[name].default for name in ("language", "chunk_tokens", "overlap_tokens")
)


def create_store(
    context: DoorContext, caller: Caller, body: CreateStoreBody, until: float
) -> tuple[Collection, FileCounts]:
    """Create a vector store with the door's embedding model, and add its files. Returns it with their counts.

    Raises ApiError, StoreUnavailable, and EmbeddingRefused as `create_collection`.
    """
    _refuse_expiry(body.expires_after)
    database = database_of(context)
    new_files = files_of_ids(context, caller, body.file_ids, body.chunking_strategy)
    model, dimensions = model_of(context, caller, context.settings.embedding_model or None, _CHUNK_TOKENS, until)
    new = NewCollection(
        None,
        model,
        dimensions,
        _LANGUAGE,
        _CHUNK_TOKENS,
        _OVERLAP_TOKENS,
        body.name,
        body.description,
        body.metadata or {},
    )
    with database_errors(caller.tenant, ""):
        collection = database.create_collection(caller.tenant, new)
    if not new_files:
        return collection, FileCounts()
    try:
        added = add_files(context, caller, collection, new_files, batch=None)
    except (ApiError, StoreUnavailable):
        delete_collection(context, caller.tenant, collection.name)
        raise
    return collection, FileCounts.of([("in_progress", len(added))])


def list_stores(context: DoorContext, tenant: str, wanted: Page) -> tuple[list[tuple[Collection, FileCounts]], bool]:
    """Return a page of the tenant's vector stores with the counts of their files, and whether there are more.

    Raises ApiError.
    """
    stores = database_of(context).stores
    with database_errors(tenant, ""):
        found, has_more = stores.page(tenant, wanted)
        counts = stores.counts(tenant, [each.id for each in found]) if found else {}
    return [(each, counts.get(each.id, FileCounts())) for each in found], has_more


def read_store(context: DoorContext, tenant: str, store_id: str) -> tuple[Collection, FileCounts]:
    """Return a vector store with the counts of its files. Raises ApiError."""
    return _with_counts(context, vector_store_of(context, tenant, store_id))


def change_store(
    context: DoorContext, tenant: str, store_id: str, body: ChangeStoreBody
) -> tuple[Collection, FileCounts]:
    """Change the fields of a vector store that the client has sent. Raises ApiError."""
    _refuse_expiry(body.expires_after)
    fields: dict[str, Any] = {}
    if "name" in body.model_fields_set:
        fields["title"] = body.name
    if "metadata" in body.model_fields_set:
        fields["labels"] = body.metadata or {}
    database = database_of(context)
    with store_errors(tenant, store_id):
        return _with_counts(context, database.stores.change(tenant, store_id, fields))


def delete_store(context: DoorContext, tenant: str, store_id: str) -> None:
    """Delete a vector store with what was loaded from its files. Raises ApiError."""
    collection = vector_store_of(context, tenant, store_id)
    with store_errors(tenant, store_id):
        delete_collection(context, tenant, collection.name)


def _with_counts(context: DoorContext, collection: Collection) -> tuple[Collection, FileCounts]:
    with store_errors(collection.tenant, collection.store_id):
        counts = database_of(context).stores.counts(collection.tenant, [collection.id])
    return collection, counts.get(collection.id, FileCounts())


def _refuse_expiry(expires_after: dict[str, Any] | None) -> None:
    if expires_after is not None:
        message = (
            "expires_after is not supported: a vector store stays until it is deleted, so delete it when it is old"
        )
        raise ApiError("unsupported_parameter", message, param="expires_after")

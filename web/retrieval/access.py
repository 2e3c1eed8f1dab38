"""The collections of a tenant in the database, with the database's faults as errors for clients."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from shared.errors import StoreUnavailable
from shared.log import LimitedEvent
from shared.retrieval.errors import (
    CollectionExists,
    CollectionMissing,
    DatabaseAway,
    InvalidInput,
    OutOfTime,
    SearchesStopped,
    TooLarge,
)
from shared.retrieval.records import Collection, Document, NewCollection
from web.http.api_errors import ApiError, invalid_field
from web.jobs.callers import Caller
from web.retrieval.bodies import CollectionBody
from web.retrieval.embedding import dimensions_of, embedding_model
from web.runtime.context import DoorContext
from web.runtime.model_pools import Model

if TYPE_CHECKING:
    from shared.retrieval.database import Database
    from shared.retrieval.file_records import LoadsOverview
    from shared.retrieval.sizes import Sizes

_AWAY = LimitedEvent("database.away")
#: After how many seconds a client may send a request again that met no database.
_RETRY_S = 5


def database_of(context: DoorContext) -> "Database":
    """Return the database of collections. Raises ApiError if this door has none."""
    if context.database is None:
        message = "this door keeps no collections: PENSTOCK_DATABASE_URL is not set"
        raise ApiError("collections_off", message)
    return context.database


@contextmanager
def database_errors(tenant: str, name: str, *, passes_out_of_time: bool = False) -> Iterator[None]:
    """Raise ApiError in place of the database's errors about the tenant's collection with this name.

    With `passes_out_of_time`, OutOfTime and SearchesStopped are raised as they are.
    """
    try:
        _check_name(name)
        yield
    except CollectionMissing:
        raise ApiError("collection_not_found", f"there is no collection {name[:80]!r}") from None
    except CollectionExists:
        raise ApiError("collection_exists", f"there is a collection {name[:80]!r} already", param="name") from None
    except InvalidInput as error:
        raise invalid_field(error.field, str(error)) from None
    except TooLarge as error:
        raise ApiError("collections_full", str(error)) from None
    except (OutOfTime, DatabaseAway) as error:
        if passes_out_of_time and isinstance(error, OutOfTime | SearchesStopped):
            raise
        _raise_away(tenant, str(error))


def _check_name(name: str) -> None:
    """Raise CollectionMissing for a name that no collection can have, and that the database could not even read."""
    if not name.isprintable():
        raise CollectionMissing(name)


def _raise_away(tenant: str, why: str) -> NoReturn:
    _AWAY.log("warning", tenant=tenant, error=why)
    headers = {"Retry-After": str(_RETRY_S), "x-should-retry": "true"}
    raise ApiError("database_unavailable", "the database of collections does not answer now; retry", headers=headers)


def collection_of(context: DoorContext, tenant: str, name: str) -> Collection:
    """Return a collection of the tenant. Raises ApiError."""
    database = database_of(context)
    with database_errors(tenant, name):
        return database.collection(tenant, name)


def collections_of(context: DoorContext, tenant: str) -> tuple[Collection, ...]:
    """Return the tenant's collections by name. Raises ApiError."""
    database = database_of(context)
    with database_errors(tenant, ""):
        return tuple(sorted(database.collections(tenant), key=lambda collection: collection.name))


def create_collection(context: DoorContext, caller: Caller, body: CollectionBody, until: float) -> Collection:
    """Create a collection.

    The dimensions of its model are those of the model's workers or, for an upstream, those of a first vector. Raises
    ApiError, StoreUnavailable, and EmbeddingRefused if that vector could not be had until `until`.
    """
    database = database_of(context)
    wanted = body.model if body.names_model else context.settings.embedding_model or None
    model, dimensions = model_of(context, caller, wanted, body.chunk_tokens, until)
    if body.dimensions is not None and body.dimensions != dimensions:
        which = "the collection has no model" if model is None else f"vectors of {model!r} have {dimensions} dimensions"
        raise invalid_field("dimensions", f"dimensions={body.dimensions}: {which}")
    with database_errors(caller.tenant, body.name):
        new = NewCollection(body.name, model, dimensions, body.language, body.chunk_tokens, body.overlap_tokens)
        return database.create_collection(caller.tenant, new)


def model_of(
    context: DoorContext, caller: Caller, wanted: str | None, chunk_tokens: int, until: float
) -> tuple[str | None, int | None]:
    """Return the name and the dimensions of the model of a new collection. Raises as `create_collection`."""
    if wanted is None:
        return None, None
    found = embedding_model(context, caller, wanted)
    dimensions = dimensions_of(context, caller, found, until)
    check_chunk_tokens(found, chunk_tokens, "chunk_tokens")
    return found.name, dimensions


def check_chunk_tokens(model: Model, chunk_tokens: int, param: str) -> None:
    """Raise ApiError if chunks of a document may be longer than the texts that the embedding model reads."""
    if model.n_ctx is not None and not model.forwards and chunk_tokens > model.n_ctx:
        message = f"{param}={chunk_tokens}: model {model.name!r} reads texts of at most {model.n_ctx} tokens"
        raise invalid_field(param, message)


def vector_store_of(context: DoorContext, tenant: str, store_id: str, *, param: str | None = None) -> Collection:
    """Return the collection of the tenant that is the vector store with this id. Raises ApiError."""
    database = database_of(context)
    with store_errors(tenant, store_id, param=param):
        return database.vector_store(tenant, store_id)


@contextmanager
def store_errors(tenant: str, store_id: str, *, param: str | None = None) -> Iterator[None]:
    """Raise ApiError in place of the database's errors about the tenant's vector store with this id."""
    try:
        with database_errors(tenant, ""):
            yield
    except ApiError as error:
        if error.code == "collection_not_found":
            raise _no_store(store_id, param) from None
        raise


def sizes_of(context: DoorContext) -> "Sizes":
    """Return how much the collections of all tenants take. Raises ApiError."""
    database = database_of(context)
    with database_errors("", ""):
        return database.sizes()


def loads_of(context: DoorContext) -> "LoadsOverview":
    """Return which files of all tenants' vector stores wait for their load or failed. Raises ApiError."""
    database = database_of(context)
    with database_errors("", ""):
        return database.loads.overview()


def delete_collection(context: DoorContext, tenant: str, name: str) -> None:
    """Delete a collection with its documents. Raises ApiError."""
    database = database_of(context)
    with database_errors(tenant, name):
        database.delete_collection(tenant, name)
    forget_passages(context, tenant)


def read_document(context: DoorContext, tenant: str, name: str, document_id: str) -> Document:
    """Return a document of a collection, without its text. Raises ApiError."""
    database = database_of(context)
    with database_errors(tenant, name):
        found = database.document(tenant, name, document_id)
    if found is None:
        raise _no_document(name, document_id)
    return found


def list_documents(
    context: DoorContext, tenant: str, name: str, *, limit: int, after: str | None
) -> tuple[list[Document], bool]:
    """Return a page of a collection's documents by id, and whether there are more. Raises ApiError."""
    database = database_of(context)
    with database_errors(tenant, name):
        found = list(database.documents(tenant, name, after=after or "", limit=limit + 1))
    return found[:limit], len(found) > limit


def delete_document(context: DoorContext, tenant: str, name: str, document_id: str) -> None:
    """Delete a document. Raises ApiError."""
    database = database_of(context)
    with database_errors(tenant, name):
        deleted = database.delete_document(tenant, name, document_id)
    if not deleted:
        raise _no_document(name, document_id)
    forget_passages(context, tenant)


def forget_passages(context: DoorContext, tenant: str) -> None:
    """Remove the cached passages of a tenant, so that no deleted text is kept. In a cell that is away, they expire."""
    for cell in context.cells.all():
        if not context.cells.is_away(cell):
            with suppress(StoreUnavailable):
                cell.passage_cache.drop(tenant)


def _no_store(store_id: str, param: str | None) -> ApiError:
    return ApiError("vector_store_not_found", f"there is no vector store {store_id[:80]!r}", param=param)


def _no_document(name: str, document_id: str) -> ApiError:
    return ApiError("document_not_found", f"collection {name[:80]!r} has no document {document_id[:80]!r}")

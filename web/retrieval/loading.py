"""Loads a document into a collection: parses, divides and embeds it, and writes its chunks, unless it is unchanged."""

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shared.log import get_logger
from shared.retrieval.file_records import FileLoad
from shared.retrieval.records import Collection, Document, NewChunk
from web.http.api_errors import ApiError
from web.http.connection_bounds import DoorBound, turned_away
from web.jobs.callers import Caller
from web.retrieval.access import collection_of, database_errors, database_of
from web.retrieval.chunking import fitting_tokens
from web.retrieval.dividing import divided
from web.retrieval.division import Division, TooManyChunks
from web.retrieval.embedding import (
    PIECE_TEXTS,
    PIECE_TOKENS,
    BulkEmbedder,
    EmbeddingLate,
    Stop,
    Vector,
    embedding_model,
)
from web.retrieval.formats.documents import UnreadableDocument, format_of
from web.retrieval.parser_places import ParsersBusy
from web.retrieval.parsing import ParseLimits, parse_file
from web.runtime.context import DoorContext
from web.runtime.model_pools import Model

log = get_logger()

#: Changes whenever the same document would be divided into other chunks, so that it is then loaded anew.
_FORM = 1
#: How long the load of a file waits for a worker before it gives its place to others, in seconds; the second one, for a
#: worker that has to load the model first.
PATIENCE_S, LOADING_PATIENCE_S = 60.0, 300.0
#: A wait until a deadline may end this much earlier, in seconds.
_EARLY_S = 0.05


@dataclass(frozen=True)
class File:
    """The content of a file, with the type and the name that the client has given."""

    content: bytes
    content_type: str
    name: str = ""


@dataclass(frozen=True)
class NewDocument:
    """A document as a client sends it."""

    id: str
    source: str | File
    metadata: dict[str, Any]
    #: How it is divided, if not as its collection says.
    chunk_tokens: int | None = None
    overlap_tokens: int | None = None


@dataclass(frozen=True)
class Loaded:
    """A document after its load."""

    document: Document
    #: Whether the collection had the same document already, with the same metadata.
    unchanged: bool


def load_document(
    context: DoorContext,
    caller: Caller,
    collection_name: str,
    new: NewDocument,
    until: float,
    *,
    stop: Stop = lambda: None,
    claim: FileLoad | None = None,
) -> Loaded:
    """Load a document into a collection of the caller's tenant; one with the same id is replaced.

    A document that is the same as before, with the collection's settings, is not embedded again; if its metadata
    differ, these alone are written. With `claim`, it is a file of a vector store, which has a place already; ClaimGone
    is raised if the claim has ended, and EmbeddingLate if it has to wait for a worker of the embedding model.

    Raises ApiError for a document that cannot be loaded, for bounds that it would exceed, and what `stop` returns;
    EmbeddingRefused if the embedding pool admits no job until `until` (seconds of time.monotonic()); StoreUnavailable.
    """
    database, tenant = database_of(context), caller.tenant
    collection = _divided_as(collection_of(context, tenant, collection_name), new)
    digest = _digest(collection, new)
    with database_errors(tenant, collection_name):
        before = database.document(tenant, collection_name, new.id)
        if before is not None and before.digest == digest:
            if claim is not None:
                database.loads.finish(claim, before.chunks)
                return Loaded(before, unchanged=True)
            is_same = _as_json(before.metadata) == _as_json(new.metadata)
            now = before if is_same else database.set_metadata(tenant, collection_name, before, new.metadata)
            # None: somebody else has replaced it meanwhile.
            if now is not None:
                return Loaded(now, unchanged=is_same)
    if claim is not None:
        return _load(context, caller, collection, new, digest, before, until, stop, claim)
    end = context.request_bounds.open_load(tenant)
    try:
        return _load(context, caller, collection, new, digest, before, until, stop, None)
    finally:
        end()


def _divided_as(collection: Collection, new: NewDocument) -> Collection:
    """Return the collection with the document's own settings of chunks, if it has any."""
    if new.chunk_tokens is None or new.overlap_tokens is None:
        return collection
    return replace(collection, chunk_tokens=new.chunk_tokens, overlap_tokens=new.overlap_tokens)


def _load(
    context: DoorContext,
    caller: Caller,
    collection: Collection,
    new: NewDocument,
    digest: str,
    before: Document | None,
    until: float,
    stop: Stop,
    claim: FileLoad | None,
) -> Loaded:
    database, tenant, began_s = database_of(context), caller.tenant, time.monotonic()
    model = None if collection.model is None else embedding_model(context, caller, collection.model)
    if model is not None and not model.live and claim is not None:
        raise EmbeddingLate(f"no live worker serves model {model.name!r}")
    text = _text(context, tenant, new.source, until)
    _check_room(context, tenant, new.id, len(text.encode()), before)
    chunks = _chunks(context, tenant, collection, model, text, until)
    vectors: Sequence[Vector | None] = [None] * len(chunks)
    if model is not None:
        embedder = BulkEmbedder(context, caller, model, until, stop, _patience_s(model, claim))
        most = max(1, min(PIECE_TEXTS, PIECE_TOKENS // collection.chunk_tokens))
        vectors = embedder.embed_all([text for text, _ in chunks], most)
        _check_dimensions(collection, vectors)
    written = [NewChunk(text, tokens, vector) for (text, tokens), vector in zip(chunks, vectors, strict=True)]
    token = None if claim is None else claim.claim
    try:
        with database_errors(tenant, collection.name):
            document = database.put_document(
                tenant, collection.name, new.id, new.metadata, digest, written, claim=token, until=until
            )
    except ApiError as error:
        if error.code == "database_unavailable" and time.monotonic() >= until - _EARLY_S:
            raise ApiError("deadline_exceeded", "the document was not written in time") from None
        raise
    log.info(
        "collection.loaded",
        tenant=tenant,
        collection=collection.name,
        chunks=len(chunks),
        ms=round(1000 * (time.monotonic() - began_s)),
    )
    return Loaded(document, unchanged=False)


def _patience_s(model: Model, claim: FileLoad | None) -> float:
    if claim is None:
        # The client's request holds its place until its deadline.
        return math.inf
    return PATIENCE_S if model.loaded else LOADING_PATIENCE_S


def _text(context: DoorContext, tenant: str, source: str | File, until: float) -> str:
    """Return the text of a document. Raises ApiError."""
    if isinstance(source, str):
        return source
    try:
        format_of(source.content_type, source.name)
    except UnreadableDocument as error:
        raise ApiError("unsupported_media_type", str(error), param="Content-Type") from None
    limits = ParseLimits(text_bytes=context.settings.max_document_bytes)
    try:
        return parse_file(source.content, source.content_type, source.name, until, tenant=tenant, limits=limits)
    except UnreadableDocument as error:
        raise ApiError("document_unreadable", str(error)) from None
    except ParsersBusy as error:
        raise turned_away(DoorBound.LOADS, str(error)) from None


def _chunks(
    context: DoorContext, tenant: str, collection: Collection, model: Model | None, text: str, until: float
) -> list[tuple[str, int]]:
    """Return the chunks of a text, each with its tokens. Raises ApiError for an empty text, and for too many chunks."""
    limit, most = collection.chunk_tokens, context.settings.max_document_chunks
    division = Division(limit, collection.overlap_tokens, most)
    if model is not None:
        limit = limit if model.forwards else fitting_tokens(limit, model.n_ctx)
        weights = "" if model.prompt_weights is None else str(model.prompt_weights)
        division = replace(
            division,
            chunk_tokens=limit,
            words=model.counts_words,
            weights=weights,
            tokens_per_byte=model.tokens_per_byte,
            whole=True,
        )
    try:
        chunks = divided(text, division, until, tenant=tenant)
    except TooManyChunks:
        message = (
            f"the document has more than {most} chunks of {limit} tokens (PENSTOCK_MAX_DOCUMENT_CHUNKS); "
            "divide it into several documents"
        )
        raise ApiError("request_too_large", message) from None
    except UnreadableDocument as error:
        raise ApiError("document_unreadable", str(error)) from None
    except ParsersBusy as error:
        raise turned_away(DoorBound.LOADS, str(error)) from None
    if not chunks:
        raise ApiError("document_unreadable", "the document has no text")
    return chunks


def _check_dimensions(collection: Collection, vectors: Sequence[Vector | None]) -> None:
    found = {len(vector) for vector in vectors if vector is not None}
    if found != {collection.dimensions}:
        message = (
            f"model {collection.model!r} makes vectors of {min(found)} dimensions, and those of collection "
            f"{collection.name!r} have {collection.dimensions}: is it another model with the same name?"
        )
        raise ApiError("embedding_mismatch", message)


def _digest(collection: Collection, new: NewDocument) -> str:
    """Return the digest of everything on which the texts and the vectors of the chunks depend."""
    kind = f"{new.source.content_type}|{new.source.name}" if isinstance(new.source, File) else "text"
    made = [_FORM, kind, collection.model, collection.chunk_tokens, collection.overlap_tokens]
    sha = hashlib.sha256(json.dumps(made, sort_keys=True).encode())
    sha.update(new.source.encode() if isinstance(new.source, str) else new.source.content)
    return sha.hexdigest()


def _as_json(metadata: Mapping[str, Any]) -> str:
    """Return metadata as a text that differs for 1, 1.0 and true."""
    return json.dumps(dict(metadata), sort_keys=True)


def _check_room(context: DoorContext, tenant: str, document_id: str, size: int, before: Document | None) -> None:
    """Raise ApiError if the tenant's documents would be too many or too long."""
    settings, database = context.settings, database_of(context)
    with database_errors(tenant, ""):
        collections = database.collections(tenant)
    documents = sum(each.documents for each in collections) + (before is None)
    taken = sum(each.text_bytes for each in collections) + size - (0 if before is None else before.text_bytes)
    for name, value, most, setting in (
        ("tenant_documents", documents, settings.max_tenant_documents, "PENSTOCK_MAX_TENANT_DOCUMENTS"),
        ("tenant_document_bytes", taken, settings.max_tenant_document_bytes, "PENSTOCK_MAX_TENANT_DOCUMENT_BYTES"),
    ):
        if value > most:
            what = "documents" if name == "tenant_documents" else "bytes of text"
            message = (
                f"with document {document_id[:80]!r}, the collections of tenant {tenant!r} would have {value} {what}, "
                f"and may have {most} ({setting})"
            )
            raise ApiError("collections_full", message, limits={"limit": name, "value": value, "max": most})

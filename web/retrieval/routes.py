"""`/v1/collections`: a tenant's collections of documents, which are loaded, listed, deleted and searched."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from apiflask import APIBlueprint
from flask import Response, g, request
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.routing import PathConverter

from web.api.body import validated
from web.api.deadline import AnswerMode
from web.api.refusals import RESTART_HINT_MS, retry_headers
from web.api.request_schema import QueueFields
from web.http import shutdown
from web.http.api_errors import ApiError, invalid, invalid_field, quoted
from web.http.json_body import parse_json
from web.jobs.callers import Caller
from web.request.body import page_limit, read_deadline, read_whole
from web.request.caller import current_caller, watch_client
from web.request.responses import json_response, list_response, yield_response
from web.retrieval.access import (
    collection_of,
    collections_of,
    create_collection,
    delete_collection,
    delete_document,
    list_documents,
    read_document,
)
from web.retrieval.bodies import (
    CollectionBody,
    DocumentBody,
    DocumentFields,
    SearchBody,
    collection_json,
    document_json,
    found_json,
)
from web.retrieval.embedding import EmbeddingRefused
from web.retrieval.loading import File, NewDocument, load_document
from web.retrieval.searching import search_collection
from web.runtime.context import DoorContext
from web.runtime.current import current_context

bp = APIBlueprint("collections", __name__, tag="Collections")


class _DocumentId(PathConverter):
    """The rest of a path, also with slashes at its beginning: such an id is refused, and not redirected to another."""

    regex = ".+?"
    part_isolating = False


bp.record_once(lambda state: state.app.url_map.converters.update(document=_DocumentId))

_PAGE, _MAX_PAGE = 20, 100
_MAX_ID_CHARS, _MAX_FILE_NAME = 256, 256
_JSON = "application/json"


@bp.post("/v1/collections")
@bp.input(CollectionBody, arg_name="body")
@bp.doc(
    responses={
        200: "The collection",
        409: "The tenant has a collection of this name",
        429: "The tenant has too many collections",
    }
)
def create(body: CollectionBody) -> Response:
    """Create a collection.

    Its documents are embedded with `model`; without a model, words alone are searched.
    """
    context, caller = current_context(), current_caller()
    try:
        return json_response(collection_json(create_collection(context, caller, body, _until(context, caller))))
    except EmbeddingRefused as refused:
        return yield_response(refused.answer)


@bp.get("/v1/collections")
@bp.doc(responses={200: "All collections of the tenant, by name", 404: "This door keeps no collections"})
def page() -> Response:
    """List the tenant's collections."""
    found = collections_of(current_context(), current_caller().tenant)
    return json_response({"object": "list", "data": [collection_json(each) for each in found]})


@bp.get("/v1/collections/<name>")
@bp.doc(responses={200: "The collection", 404: "This tenant has no such collection"})
def read(name: str) -> Response:
    """Read what is known of a collection."""
    return json_response(collection_json(collection_of(current_context(), current_caller().tenant, name)))


@bp.delete("/v1/collections/<name>")
@bp.doc(responses={200: "The collection was deleted", 404: "This tenant has no such collection"})
def delete(name: str) -> Response:
    """Delete a collection with its documents."""
    delete_collection(current_context(), current_caller().tenant, name)
    return json_response({"object": "collection.deleted", "name": name, "deleted": True})


@bp.put("/v1/collections/<name>/documents/<document:document_id>", merge_slashes=False)
@bp.doc(
    responses={
        200: "The document",
        404: "This tenant has no such collection",
        409: "The collection's model makes other vectors than before",
        413: "The document is too large",
        415: "Files of this type cannot be read",
        429: "A bound of the tenant's collections or of this process is reached",
        503: "A yield: the embedding model takes no work now; retry after `retry_hint_ms`",
        504: "The document was not embedded before the deadline",
    }
)
def put(name: str, document_id: str) -> Response:
    """Load a document, or replace it.

    The body is JSON with `text` and, optionally, `metadata`; or a file: plain text, Markdown, HTML, PDF or, if the
    query has a `filename`, JSON. The metadata of a file is JSON in the query's `metadata`. The answer comes when the
    document can be found. A document that is the same as before is not embedded again.
    """
    context, caller = current_context(), current_caller()
    # Without a deadline of the client, the longest, as for a stream: the answer to a load may take that long.
    until = _until(context, caller, "stream")
    with ExitStack() as held:
        new = _new_document(_checked_id(document_id), context.settings.max_document_bytes, held)
        try:
            loaded = load_document(context, caller, name, new, until, stop=_reason_to_stop())
        except EmbeddingRefused as refused:
            return yield_response(refused.answer)
    return json_response(document_json(loaded.document) | {"unchanged": loaded.unchanged})


@bp.get("/v1/collections/<name>/documents")
@bp.doc(responses={200: "One page of documents, by id", 404: "This tenant has no such collection"})
def document_page(name: str) -> Response:
    """List the documents of a collection."""
    limit, after = page_limit(_PAGE, _MAX_PAGE), request.args.get("after")
    if after is not None:
        _checked_id(after, "after")
    found, has_more = list_documents(current_context(), current_caller().tenant, name, limit=limit, after=after)
    return list_response([document_json(each) for each in found], has_more=has_more)


@bp.get("/v1/collections/<name>/documents/<document:document_id>", merge_slashes=False)
@bp.doc(responses={200: "The document, without its text", 404: "The collection has no such document"})
def read_one_document(name: str, document_id: str) -> Response:
    """Read what is known of a document."""
    tenant = current_caller().tenant
    return json_response(document_json(read_document(current_context(), tenant, name, _checked_id(document_id))))


@bp.delete("/v1/collections/<name>/documents/<document:document_id>", merge_slashes=False)
@bp.doc(responses={200: "The document was deleted", 404: "The collection has no such document"})
def delete_one_document(name: str, document_id: str) -> Response:
    """Delete a document."""
    delete_document(current_context(), current_caller().tenant, name, _checked_id(document_id))
    return json_response({"object": "collection.document.deleted", "id": document_id, "deleted": True})


@bp.post("/v1/collections/<name>/search")
@bp.input(SearchBody, arg_name="body")
@bp.doc(responses={200: "The passages, the best first", 404: "This tenant has no such collection"})
def search(name: str, body: SearchBody) -> Response:
    """Search a collection.

    Returns the passages that answer the query best, by their vectors, by their words, or by both, in the order of a
    model if `rerank` names one. `omitted` names the parts that were not done within `budget_ms`.
    """
    began_s = time.monotonic()
    found = search_collection(current_context(), current_caller(), name, body)
    return json_response(found_json(found, round(1000 * (time.monotonic() - began_s))))


def _new_document(document_id: str, longest: int, held: ExitStack) -> NewDocument:
    """Return the document in the current request. Until `held` is closed, a file counts as a body that is read."""
    if request.mimetype == _JSON and "filename" not in request.args:
        body = validated(DocumentBody, request.get_json())
        return NewDocument(document_id, body.text, dict(body.metadata))
    name, metadata = _file_name(), _query_metadata()
    request.max_content_length = longest
    held.callback(g.open_body(min(longest, request.content_length or longest)))
    return NewDocument(document_id, File(_content(longest), request.content_type or "", name), metadata)


def _until(context: DoorContext, caller: Caller, mode: AnswerMode = "hold") -> float:
    """Return the end of the current request, in seconds of time.monotonic(). Raises ApiError."""
    deadline = read_deadline(context.settings, caller.policy, QueueFields.model_validate({}), mode)
    return time.monotonic() + deadline.deadline_ms / 1000


def _checked_id(document_id: str, param: str = "id") -> str:
    if not 1 <= len(document_id) <= _MAX_ID_CHARS or not document_id.isprintable():
        raise invalid(param, document_id, f"an id: 1 to {_MAX_ID_CHARS} printable characters")
    if document_id.startswith("/") or "//" in document_id:
        raise invalid(param, document_id, "an id: it does not begin with '/', and has no '//'")
    return document_id


def _content(longest: int) -> bytes:
    try:
        return read_whole()
    except RequestEntityTooLarge:
        message = f"the document is longer than {longest} bytes (PENSTOCK_MAX_DOCUMENT_BYTES)"
        raise ApiError("request_too_large", message) from None


def _file_name() -> str:
    name = request.args.get("filename", "")
    if len(name) > _MAX_FILE_NAME or not name.isprintable():
        raise invalid("filename", name, f"a name of at most {_MAX_FILE_NAME} printable characters")
    return name


def _query_metadata() -> dict[str, Any]:
    text = request.args.get("metadata", "")
    if not text:
        return {}
    try:
        value = parse_json(text.encode())
    except ApiError as error:
        raise invalid_field("metadata", f"metadata={quoted(text)}: {error.message}") from None
    return dict(validated(DocumentFields, {"metadata": value}).metadata)


def _reason_to_stop() -> Callable[[], ApiError | None]:
    """Return a function that returns why the current request need not be served any longer, or None."""
    client = watch_client()

    def reason() -> ApiError | None:
        if client.key_problem is not None:
            return client.key_problem
        if shutdown.requested.is_set():
            headers = {"x-should-retry": "true"} | retry_headers(RESTART_HINT_MS)
            return ApiError("draining", "the server is stopping; send the document again", headers=headers)
        return ApiError("request_timeout", "the client has closed the connection") if client.gone() else None

    return reason

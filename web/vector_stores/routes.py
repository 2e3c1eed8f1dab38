"""`/v1/vector_stores`: the tenant's collections as OpenAI's vector stores."""

import json
import time
from collections.abc import Iterator

from apiflask import APIBlueprint
from flask import Response, request

from shared.retrieval.file_records import FILE_STATES, FileBatch, StoreFile
from shared.retrieval.pages import Page
from shared.retrieval.records import MAX_DOCUMENT_ID, STORE_PREFIX, Collection
from web.api.request_schema import QueueFields
from web.http.api_errors import invalid, invalid_field, quoted
from web.jobs.callers import Caller
from web.request.body import oldest_first, page_limit, read_deadline
from web.request.caller import current_caller
from web.request.responses import json_response, list_response, name_ignored, yield_response
from web.retrieval.access import vector_store_of
from web.retrieval.embedding import EmbeddingRefused
from web.runtime.context import DoorContext
from web.runtime.current import current_context
from web.vector_stores import files, stores
from web.vector_stores.answers import batch_json, file_json, found_json, store_json
from web.vector_stores.bodies import (
    AddFileBody,
    ChangeFileBody,
    ChangeStoreBody,
    CreateStoreBody,
    FileBatchBody,
    SearchStoreBody,
)
from web.vector_stores.search import search_store

bp = APIBlueprint("vector_stores", __name__, tag="OpenAI")

_PAGE, _MAX_PAGE = 20, 100
#: After how many ms OpenAI's packages look again at files that are being loaded.
_POLL_MS = "250"
_STORE, _NO_STORE = "/v1/vector_stores/<store_id>", "This tenant has no such vector store"
_FILE, _NO_FILE = f"{_STORE}/files/<path:file_id>", "The vector store has no such file"
_BATCH, _NO_BATCH = f"{_STORE}/file_batches/<batch_id>", "The vector store has no such batch of files"
_FULL = "A bound of the tenant's collections is reached"


@bp.post("/v1/vector_stores")
@bp.input(CreateStoreBody, arg_name="body")
@bp.doc(responses={200: "The vector store", 404: "A file does not exist", 429: _FULL})
def create(body: CreateStoreBody) -> Response:
    """Create a vector store.

    It is a collection that is embedded with the door's embedding model. Its files are loaded after the answer.
    """
    context, caller = current_context(), current_caller()
    try:
        collection, counts = stores.create_store(context, caller, body, _until(context, caller))
    except EmbeddingRefused as refused:
        return yield_response(refused.answer)
    return json_response(store_json(collection, counts))


@bp.get("/v1/vector_stores")
@bp.doc(responses={200: "One page of vector stores, the newest first", 404: "This door keeps no collections"})
def page() -> Response:
    """List the tenant's vector stores, which are all its collections."""
    wanted = _page().without_prefix(STORE_PREFIX)
    found, has_more = stores.list_stores(current_context(), current_caller().tenant, wanted)
    return list_response([store_json(*each) for each in found], has_more=has_more)


@bp.get(_STORE)
@bp.doc(responses={200: "The vector store", 404: _NO_STORE})
def read(store_id: str) -> Response:
    """Read a vector store."""
    return json_response(store_json(*stores.read_store(current_context(), current_caller().tenant, store_id)))


@bp.post(_STORE)
@bp.input(ChangeStoreBody, arg_name="body")
@bp.doc(responses={200: "The vector store", 404: _NO_STORE})
def change(store_id: str, body: ChangeStoreBody) -> Response:
    """Change the name or the metadata of a vector store."""
    changed = stores.change_store(current_context(), current_caller().tenant, store_id, body)
    return json_response(store_json(*changed))


@bp.delete(_STORE)
@bp.doc(responses={200: "The vector store was deleted", 404: _NO_STORE})
def delete(store_id: str) -> Response:
    """Delete a vector store. Its uploaded files stay."""
    stores.delete_store(current_context(), current_caller().tenant, store_id)
    return json_response({"id": store_id, "object": "vector_store.deleted", "deleted": True})


@bp.post(f"{_STORE}/search")
@bp.input(SearchStoreBody, arg_name="body")
@bp.doc(responses={200: "The chunks, the best first", 404: _NO_STORE, 504: "Nothing was searched in time"})
def search(store_id: str, body: SearchStoreBody) -> Response:
    """Search a vector store.

    `omitted` names the halves of the search, by vectors and by words, that were not searched in time.
    """
    context = current_context()
    found = search_store(context, current_caller(), store_id, body)
    response = json_response(found_json(body.queries, found.passages, found.omitted))
    return name_ignored(context, body, response)


@bp.post(f"{_STORE}/files")
@bp.input(AddFileBody, arg_name="body")
@bp.doc(responses={200: "The file, which is loaded after the answer", 404: "No such vector store or file", 429: _FULL})
def add_file(store_id: str, body: AddFileBody) -> Response:
    """Add an uploaded file to a vector store. A file that it has already is loaded again."""
    context, caller, collection = _current(store_id)
    new = files.new_files(context, caller, [body], "file_id")
    (added,) = files.add_files(context, caller, collection, new, batch=None)
    return _file_response(collection, added)


@bp.get(f"{_STORE}/files")
@bp.doc(responses={200: "One page of files", 404: _NO_STORE})
def file_page(store_id: str) -> Response:
    """List the files of a vector store, by their ids, which have the order of the uploads."""
    return _file_page(store_id, None)


@bp.get(_FILE)
@bp.doc(responses={200: "The file", 404: _NO_FILE})
def read_file(store_id: str, file_id: str) -> Response:
    """Read the state of a file of a vector store."""
    context, _, collection = _current(store_id)
    return _file_response(collection, files.read_file(context, collection, file_id))


@bp.post(_FILE)
@bp.input(ChangeFileBody, arg_name="body")
@bp.doc(responses={200: "The file", 404: _NO_FILE})
def change_file(store_id: str, file_id: str, body: ChangeFileBody) -> Response:
    """Replace the attributes of a file of a vector store."""
    context, _, collection = _current(store_id)
    return _file_response(collection, files.change_file(context, collection, file_id, body.attributes or {}))


@bp.delete(_FILE)
@bp.doc(responses={200: "The file was removed", 404: _NO_FILE})
def remove_file(store_id: str, file_id: str) -> Response:
    """Remove a file from a vector store. The uploaded file stays."""
    context, _, collection = _current(store_id)
    files.remove_file(context, collection, file_id)
    return json_response({"id": file_id, "object": "vector_store.file.deleted", "deleted": True})


@bp.get(f"{_FILE}/content")
@bp.doc(responses={200: "The chunks of the file, in their order", 404: _NO_FILE})
def content(store_id: str, file_id: str) -> Response:
    """Read the text of a file of a vector store, as it was divided: a chunk may repeat the end of the one before."""
    context, _, collection = _current(store_id)
    texts = files.chunk_texts(context, collection, file_id)
    response = Response(_content(texts), content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response


@bp.post(f"{_STORE}/file_batches")
@bp.input(FileBatchBody, arg_name="body")
@bp.doc(responses={200: "The batch", 404: "No such vector store or file", 429: _FULL})
def add_batch(store_id: str, body: FileBatchBody) -> Response:
    """Add several uploaded files to a vector store. They are loaded after the answer."""
    context, caller, collection = _current(store_id)
    param = "file_ids[{}]" if body.files is None else "files[{}].file_id"
    new = files.new_files(context, caller, body.all_files, param)
    return _batch_response(collection, files.add_batch(context, caller, collection, new))


@bp.get(_BATCH)
@bp.doc(responses={200: "The batch", 404: _NO_BATCH})
def read_batch(store_id: str, batch_id: str) -> Response:
    """Read the state of a batch of files."""
    context, _, collection = _current(store_id)
    return _batch_response(collection, files.read_batch(context, collection, batch_id))


@bp.post(f"{_BATCH}/cancel")
@bp.doc(responses={200: "The batch", 404: _NO_BATCH})
def cancel_batch(store_id: str, batch_id: str) -> Response:
    """Cancel those files of a batch that are not loaded yet."""
    context, _, collection = _current(store_id)
    return _batch_response(collection, files.cancel_batch(context, collection, batch_id))


@bp.get(f"{_BATCH}/files")
@bp.doc(responses={200: "One page of files", 404: _NO_BATCH})
def batch_page(store_id: str, batch_id: str) -> Response:
    """List the files of a batch."""
    return _file_page(store_id, batch_id)


def _current(store_id: str) -> tuple[DoorContext, Caller, Collection]:
    context, caller = current_context(), current_caller()
    return context, caller, vector_store_of(context, caller.tenant, store_id)


def _file_page(store_id: str, batch_id: str | None) -> Response:
    wanted, state = _page(), request.args.get("filter")
    if state is not None and state not in FILE_STATES:
        raise invalid_field("filter", f"filter={quoted(state)} is not one of {', '.join(FILE_STATES)}")
    context, _, collection = _current(store_id)
    if batch_id is not None:
        files.read_batch(context, collection, batch_id)
    found, has_more = files.list_files(context, collection, wanted, state=state, batch=batch_id)
    return list_response([file_json(collection, each) for each in found], has_more=has_more)


def _page() -> Page:
    return Page(page_limit(_PAGE, _MAX_PAGE), _cursor("after"), _cursor("before"), oldest_first=oldest_first())


def _cursor(name: str) -> str | None:
    text = request.args.get(name)
    if text is not None and not (1 <= len(text) <= MAX_DOCUMENT_ID and text.isprintable()):
        raise invalid(name, text, "an id")
    return text


def _file_response(collection: Collection, file: StoreFile) -> Response:
    headers = {"openai-poll-after-ms": _POLL_MS} if file.state == "in_progress" else {}
    return json_response(file_json(collection, file), headers=headers)


def _batch_response(collection: Collection, batch: FileBatch) -> Response:
    headers = {"openai-poll-after-ms": _POLL_MS} if batch.counts.in_progress else {}
    return json_response(batch_json(collection, batch), headers=headers)


def _content(texts: Iterator[str]) -> Iterator[bytes]:
    yield b'{"object":"vector_store.file_content.page","data":['
    for number, text in enumerate(texts):
        item = json.dumps({"type": "text", "text": text}, ensure_ascii=False, separators=(",", ":"))
        yield (b"," if number else b"") + item.encode()
    yield b'],"has_more":false,"next_page":null}\n'


def _until(context: DoorContext, caller: Caller) -> float:
    """Return the end of the current request, in seconds of time.monotonic(). Raises ApiError."""
    deadline = read_deadline(context.settings, caller.policy, QueueFields.model_validate({}), "hold")
    return time.monotonic() + deadline.deadline_ms / 1000

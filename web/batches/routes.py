"""`/v1/batches` and `/v1/files`: batches of requests, and the files whose lines are these requests."""

from apiflask import APIBlueprint
from flask import Response, g, request

from web.batches.records import (
    BatchBody,
    batch_json,
    cancel_batch,
    create_batch,
    delete_file,
    file_content,
    file_json,
    list_batches,
    list_files,
    read_batch,
    read_file,
)
from web.batches.uploads import BATCH, DOCUMENTS, FORM_BYTES, HELD_BYTES, cell_of_upload, receive_file
from web.http.api_errors import invalid_field, quoted
from web.request.body import batch_repeats, file_idem_digest, oldest_first, page_after, page_limit, read_part
from web.request.caller import current_caller
from web.request.responses import json_response, list_response
from web.runtime.context import DoorContext
from web.runtime.current import current_context, use_context

bp = APIBlueprint("batches", __name__, tag="OpenAI")

_PAGE, _MAX_PAGE = 20, 100


def _context_of(stored_id: str) -> DoorContext:
    """Return the context of the cell that an id names. If its store is away, the rest of the request says so of it."""
    current_caller()
    context = current_context().of_stored(stored_id)
    use_context(context)
    return context


@bp.post("/v1/batches")
@bp.input(BatchBody, arg_name="body")
@bp.doc(responses={200: "The batch", 404: "This tenant has no such file", 429: "The tenant has too many open batches"})
def create(body: BatchBody) -> Response:
    """Create a batch.

    Each line of the input file is a request, which becomes a job of priority -1. The lines are validated after the
    answer: a batch with an invalid line fails, and `errors` names the lines.
    """
    context, caller = _context_of(body.input_file_id), current_caller()
    return json_response(batch_json(create_batch(context, caller, body, batch_repeats(body))))


@bp.get("/v1/batches")
@bp.doc(responses={200: "One page of batches, the newest first"})
def page() -> Response:
    """List the tenant's batches."""
    limit, after = page_limit(_PAGE, _MAX_PAGE), page_after()
    batches, has_more = list_batches(current_context(), current_caller().tenant, limit=limit, after=after)
    return list_response([batch_json(batch) for batch in batches], has_more=has_more)


@bp.get("/v1/batches/<batch_id>")
@bp.doc(responses={200: "The batch", 404: "This tenant has no such batch"})
def read(batch_id: str) -> Response:
    """Read a batch."""
    return json_response(batch_json(read_batch(_context_of(batch_id), current_caller().tenant, batch_id)))


@bp.post("/v1/batches/<batch_id>/cancel")
@bp.doc(responses={200: "The batch", 404: "This tenant has no such batch"})
def cancel(batch_id: str) -> Response:
    """Cancel a batch.

    Jobs of the batch are canceled, and its remaining lines are not run. The answers until then are in the output file.
    A batch whose files are being written, or that has ended, does not change.
    """
    return json_response(batch_json(cancel_batch(_context_of(batch_id), current_caller().tenant, batch_id)))


file_bp = APIBlueprint("files", __name__, tag="OpenAI")

#: The most files of one page. OpenAI's packages ask for further pages by themselves.
_MAX_FILES = 100
_PURPOSES = (BATCH, "batch_output", *DOCUMENTS)


@file_bp.post("/v1/files")
@file_bp.doc(
    responses={200: "The file", 429: "The bytes of the tenant are exhausted", 503: "The bytes of all tenants are"}
)
def upload() -> Response:
    """Upload a file.

    The body is a form with the fields `file` and `purpose`, and optionally `expires_after[seconds]`. The purpose is
    `batch`, or `assistants` or `user_data` for files of vector stores. The file is stored while it arrives.
    """
    tenant, idem_digest = current_caller().tenant, file_idem_digest()
    context = cell_of_upload(current_context(), tenant, idem_digest)
    use_context(context)
    request.max_content_length = context.settings.max_file_bytes + FORM_BYTES
    end = g.open_body(min(HELD_BYTES, context.settings.max_body_bytes))
    try:
        file = receive_file(context, tenant, read_part, request.headers.get("Content-Type", ""), idem_digest)
    finally:
        end()
    return json_response(file_json(file))


@file_bp.get("/v1/files")
@file_bp.doc(responses={200: "One page of files, the newest first"})
def file_page() -> Response:
    """List the tenant's files."""
    purpose = request.args.get("purpose")
    if purpose is not None and purpose not in _PURPOSES:
        raise invalid_field("purpose", f"purpose={quoted(purpose)} is not one of {', '.join(_PURPOSES)}")
    files, has_more = list_files(
        current_context(),
        current_caller().tenant,
        limit=page_limit(_MAX_FILES, _MAX_FILES),
        after=page_after(),
        oldest_first=oldest_first(),
        purpose=purpose or "",
    )
    return list_response([file_json(file) for file in files], has_more=has_more)


@file_bp.get("/v1/files/<file_id>")
@file_bp.doc(responses={200: "The file", 404: "This tenant has no such file"})
def read_one_file(file_id: str) -> Response:
    """Read what is known of a file."""
    return json_response(file_json(read_file(_context_of(file_id), current_caller().tenant, file_id)))


@file_bp.get("/v1/files/<file_id>/content")
@file_bp.doc(responses={200: "The bytes of the file", 404: "This tenant has no such file"})
def content(file_id: str) -> Response:
    """Read a file."""
    context = _context_of(file_id)
    file = read_file(context, current_caller().tenant, file_id)
    response = Response(file_content(context, file), mimetype="application/octet-stream")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.content_length = file.bytes
    return response


@file_bp.delete("/v1/files/<file_id>")
@file_bp.doc(
    responses={200: "The file was deleted", 404: "This tenant has no such file", 409: "A batch reads the file"}
)
def delete(file_id: str) -> Response:
    """Delete a file."""
    delete_file(_context_of(file_id), current_caller().tenant, file_id)
    return json_response({"id": file_id, "object": "file", "deleted": True})

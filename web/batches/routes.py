"""`/v1/batches` and `/v1/files`: batches of requests, and the files whose lines are these requests."""

from apiflask import APIBlueprint
from flask import Response, g, request
from gunicorn.http.errors import ParseException  # type: ignore[import-untyped]  # ships no types
from werkzeug.exceptions import ClientDisconnected

from web.batches.records import (
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
from web.batches.uploads import FORM_BYTES, HELD_BYTES, receive_file
from web.http.api_errors import ApiError, invalid_field, quoted
from web.openai.batch_schema import BatchBody
from web.request.body import oldest_first, page_after, page_limit
from web.request.caller import current_caller
from web.request.idempotency import batch_repeats, file_idem_digest
from web.request.responses import json_response, list_response
from web.runtime.current import current_context

bp = APIBlueprint("batches", __name__, tag="OpenAI")

_PAGE, _MAX_PAGE = 20, 100


@bp.post("/v1/batches")
@bp.input(BatchBody, arg_name="body")
@bp.doc(
    summary="Create a batch",
    description="Each line of the input file is a request, which becomes a job of priority -1. The lines are validated "
    "after the answer: a batch with an invalid line fails, and `errors` names the lines.",
    responses={200: "The batch", 404: "This tenant has no such file", 429: "The tenant has too many open batches"},
)
def create(body: BatchBody) -> Response:
    """Create a batch for the lines of a file."""
    return json_response(batch_json(create_batch(current_context(), current_caller(), body, batch_repeats(body))))


@bp.get("/v1/batches")
@bp.doc(summary="List the tenant's batches", responses={200: "One page of batches, the newest first"})
def page() -> Response:
    """Return one page of the tenant's batches."""
    batches, has_more = list_batches(
        current_context(), current_caller().tenant, limit=page_limit(_PAGE, _MAX_PAGE), after=page_after()
    )
    return list_response([batch_json(batch) for batch in batches], has_more=has_more)


@bp.get("/v1/batches/<batch_id>")
@bp.doc(summary="Read a batch", responses={200: "The batch", 404: "This tenant has no such batch"})
def read(batch_id: str) -> Response:
    """Return a batch."""
    return json_response(batch_json(read_batch(current_context(), current_caller().tenant, batch_id)))


@bp.post("/v1/batches/<batch_id>/cancel")
@bp.doc(
    summary="Cancel a batch",
    description="Jobs of the batch are canceled, and its remaining lines are not run. The answers until then are in "
    "the output file. A batch whose files are being written, or that has ended, does not change.",
    responses={200: "The batch", 404: "This tenant has no such batch"},
)
def cancel(batch_id: str) -> Response:
    """Ask for the end of a batch."""
    return json_response(batch_json(cancel_batch(current_context(), current_caller().tenant, batch_id)))


file_bp = APIBlueprint("files", __name__, tag="OpenAI")

#: The most files of one page. OpenAI's packages ask for further pages by themselves.
_MAX_FILES = 100
_PURPOSES = ("batch", "batch_output")


@file_bp.post("/v1/files")
@file_bp.doc(
    summary="Upload a file",
    description="The body is a form with the fields `file` and `purpose`, which must be `batch`, and optionally "
    "`expires_after[seconds]`. The file is stored while it arrives.",
    responses={200: "The file", 429: "The bytes of the tenant are exhausted", 503: "The bytes of all tenants are"},
)
def upload() -> Response:
    """Store the file in a form."""
    context, tenant, idem_digest = current_context(), current_caller().tenant, file_idem_digest()
    request.max_content_length = context.settings.max_file_bytes + FORM_BYTES
    end = g.open_body(min(HELD_BYTES, context.settings.max_body_bytes))
    try:
        file = receive_file(context, tenant, _RequestBody(), request.headers.get("Content-Type", ""), idem_digest)
    finally:
        end()
    return json_response(file_json(file))


@file_bp.get("/v1/files")
@file_bp.doc(summary="List the tenant's files", responses={200: "One page of files, the newest first"})
def file_page() -> Response:
    """Return one page of the tenant's files."""
    purpose = request.args.get("purpose")
    if purpose is not None and purpose not in _PURPOSES:
        message = f"purpose={quoted(purpose)} is not one of {', '.join(_PURPOSES)}"
        raise invalid_field("purpose", message)
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
@file_bp.doc(summary="Read what is known of a file", responses={200: "The file", 404: "This tenant has no such file"})
def read_one_file(file_id: str) -> Response:
    """Return a file without its content."""
    return json_response(file_json(read_file(current_context(), current_caller().tenant, file_id)))


@file_bp.get("/v1/files/<file_id>/content")
@file_bp.doc(summary="Read a file", responses={200: "The bytes of the file", 404: "This tenant has no such file"})
def content(file_id: str) -> Response:
    """Return the content of a file."""
    context = current_context()
    file = read_file(context, current_caller().tenant, file_id)
    response = Response(file_content(context, file), mimetype="application/octet-stream")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.content_length = file.bytes
    return response


@file_bp.delete("/v1/files/<file_id>")
@file_bp.doc(
    summary="Delete a file",
    responses={200: "The file was deleted", 404: "This tenant has no such file", 409: "A batch reads the file"},
)
def delete(file_id: str) -> Response:
    """Delete a file that no batch reads."""
    delete_file(current_context(), current_caller().tenant, file_id)
    return json_response({"id": file_id, "object": "file", "deleted": True})


class _RequestBody:
    """The body of the current request."""

    def read(self, size: int) -> bytes:
        """Return the next bytes. Raises ApiError, and RequestEntityTooLarge (413) if the body is too long."""
        try:
            return request.stream.read(size)
        except ParseException as error:
            message = f"Transfer-Encoding is chunked, but the body is not encoded in chunks: {error}"
            raise ApiError("invalid_request", message) from error
        except ClientDisconnected:
            message = "the client stopped sending the body, or the body ended within a chunk"
            raise ApiError("invalid_request", message) from None

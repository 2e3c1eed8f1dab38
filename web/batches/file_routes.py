"""`/v1/files`: upload, read, list and delete the files whose lines are the requests of batches."""

from apiflask import APIBlueprint
from flask import Response, g, request
from gunicorn.http.errors import ParseException  # type: ignore[import-untyped]  # ships no types
from werkzeug.exceptions import ClientDisconnected

from web.batches.batch_json import file_json
from web.batches.records import delete_file, file_content, list_files, read_file
from web.batches.uploads import FORM_BYTES, HELD_BYTES, receive_file
from web.http.api_errors import ApiError, invalid_field, quoted
from web.request.caller import current_caller
from web.request.idempotency import file_idem_digest
from web.request.page_arguments import oldest_first, page_after, page_limit
from web.request.responses import json_response, list_response
from web.runtime.current import current_context

bp = APIBlueprint("files", __name__, tag="OpenAI")

#: The most files of one page. OpenAI's packages ask for further pages by themselves.
_MAX_PAGE = 100
_PURPOSES = ("batch", "batch_output")


@bp.post("/v1/files")
@bp.doc(
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


@bp.get("/v1/files")
@bp.doc(summary="List the tenant's files", responses={200: "One page of files, the newest first"})
def page() -> Response:
    """Return one page of the tenant's files."""
    purpose = request.args.get("purpose")
    if purpose is not None and purpose not in _PURPOSES:
        message = f"purpose={quoted(purpose)} is not one of {', '.join(_PURPOSES)}"
        raise invalid_field("purpose", message)
    files, has_more = list_files(
        current_context(),
        current_caller().tenant,
        limit=page_limit(_MAX_PAGE, _MAX_PAGE),
        after=page_after(),
        oldest_first=oldest_first(),
        purpose=purpose or "",
    )
    return list_response([file_json(file) for file in files], has_more=has_more)


@bp.get("/v1/files/<file_id>")
@bp.doc(summary="Read what is known of a file", responses={200: "The file", 404: "This tenant has no such file"})
def read(file_id: str) -> Response:
    """Return a file without its content."""
    return json_response(file_json(read_file(current_context(), current_caller().tenant, file_id)))


@bp.get("/v1/files/<file_id>/content")
@bp.doc(summary="Read a file", responses={200: "The bytes of the file", 404: "This tenant has no such file"})
def content(file_id: str) -> Response:
    """Return the content of a file."""
    context = current_context()
    file = read_file(context, current_caller().tenant, file_id)
    response = Response(file_content(context, file), mimetype="application/octet-stream")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.content_length = file.bytes
    return response


@bp.delete("/v1/files/<file_id>")
@bp.doc(
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

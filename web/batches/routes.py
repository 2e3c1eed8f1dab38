"""`/v1/batches`: create, read, list and cancel batches of requests."""

from apiflask import APIBlueprint
from flask import Response

from web.batches.batch_json import batch_json
from web.batches.records import cancel_batch, create_batch, list_batches, read_batch
from web.openai.batch_schema import BatchBody
from web.request.caller import current_caller
from web.request.idempotency import batch_repeats
from web.request.page_arguments import page_after, page_limit
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

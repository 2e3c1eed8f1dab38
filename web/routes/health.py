"""Routes for operators and monitoring: liveness, readiness, metrics."""

from apiflask import APIBlueprint
from flask import Response, request
from prometheus_client.exposition import choose_encoder

from shared.errors import StoreUnavailable
from shared.version import package_version
from web.jobs.snapshots import readiness_over_cells, with_retrieval
from web.request.caller import require_admin
from web.request.responses import json_response, store_away_response
from web.runtime.current import current_context
from web.runtime.fleet_metrics import CONTENT_TYPES, Format

bp = APIBlueprint("health", __name__, tag="Operators")


@bp.get("/health")
@bp.doc(responses={200: "This process answers requests"})
def health() -> Response:
    """Check whether this process is alive."""
    return json_response({"status": "ok", "version": package_version()})


@bp.get("/health/ready")
@bp.doc(
    responses={
        200: "The system is ready",
        404: "No model, alias or route has the name `model`",
        503: "The system or the model is not ready; `reason` says why, and `store_fault` why the store cannot serve",
    }
)
def ready() -> Response:
    """Check whether the system is ready to admit jobs; with `model`, whether this model has a worker that claims jobs.

    With `retrieval`, the database of collections must be ready as well. The answer is up to a second old (with `model`,
    two), because anybody may send this request as often as they like.
    """
    context, model = current_context(), request.args.get("model")
    try:
        readiness = readiness_over_cells(context, model)
        if "retrieval" in request.args:
            readiness = with_retrieval(context, readiness)
    except StoreUnavailable as error:
        return store_away_response(context, error.fault)
    return json_response(readiness.body(), 200 if readiness.is_ready else 503)


@bp.get("/metrics")
@bp.doc(responses={200: "The metrics in Prometheus text format"})
def process_metrics() -> Response:
    """Read the metrics of this host's door, for Prometheus.

    Each of these processes gives the same answer.
    """
    page_format = _accepted_format()
    return Response(current_context().process_page.render(page_format), content_type=CONTENT_TYPES[page_format])


@bp.get("/metrics/fleet")
@bp.doc(responses={200: "The metrics in Prometheus text format"})
def fleet_metrics() -> Response:
    """Read the metrics of the whole system, for Prometheus.

    Only operators may read these metrics, because they contain the names of tenants.
    """
    require_admin()
    page_format = _accepted_format()
    page = current_context().process.fleet.render(page_format)
    return Response(page, content_type=CONTENT_TYPES[page_format])


def _accepted_format() -> Format:
    try:
        content_type = choose_encoder(request.headers.get("Accept", ""))[1]
    except TypeError:
        # choose_encoder raises TypeError if the version in the Accept header is not a number.
        return "text"
    return "openmetrics" if content_type.startswith("application/openmetrics-text") else "text"

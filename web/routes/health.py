"""Routes for operators and monitoring: liveness, readiness, metrics."""

from apiflask import APIBlueprint
from flask import Response, request
from prometheus_client.exposition import choose_encoder

from shared.errors import StoreUnavailable
from shared.version import package_version
from web.jobs.snapshots import read_readiness
from web.request.caller import require_admin
from web.request.responses import json_response, store_away_response
from web.runtime.current import current_context
from web.runtime.fleet.metrics import Format
from web.runtime.fleet.page import CONTENT_TYPES

bp = APIBlueprint("health", __name__, tag="Operators")


@bp.get("/health")
@bp.doc(summary="Check whether this process is alive", responses={200: "This process answers requests"})
def health() -> Response:
    """Answer without calling the store. A 200 means only that this process is running."""
    return json_response({"status": "ok", "version": package_version()})


@bp.get("/health/ready")
@bp.doc(
    summary="Check whether the system is ready to admit jobs",
    responses={200: "The system is ready", 503: "The system is not ready; `reason` says why"},
)
def ready() -> Response:
    """Answer 200 if the store answers and a worker is live that may claim jobs; otherwise 503.

    The answer is up to a second old, because anybody may send this request as often as they like.
    """
    context = current_context()
    try:
        readiness = read_readiness(context)
    except StoreUnavailable:
        return store_away_response(context)
    return json_response(readiness.body(), 200 if readiness.reason is None else 503)


@bp.get("/metrics")
@bp.doc(
    summary="Read the metrics of this host's door, for Prometheus",
    responses={200: "The metrics in Prometheus text format"},
)
def process_metrics() -> Response:
    """Return the metrics of all HTTP processes of this start, without those that are kept in the store.

    Each of these processes gives the same answer.
    """
    page_format = _accepted_format()
    return Response(current_context().process_page.render(page_format), content_type=CONTENT_TYPES[page_format])


@bp.get("/metrics/fleet")
@bp.doc(
    summary="Read the metrics of the whole system, for Prometheus",
    responses={200: "The metrics in Prometheus text format"},
)
def fleet_metrics() -> Response:
    """Return the metrics that are kept in the store; every ingress returns the same values.

    Only operators may read these metrics, because they contain the names of tenants.
    """
    require_admin()
    page_format = _accepted_format()
    page = current_context().fleet_page.render(page_format)
    return Response(page, content_type=CONTENT_TYPES[page_format])


def _accepted_format() -> Format:
    """Return the format of metrics that the client accepts."""
    try:
        content_type = choose_encoder(request.headers.get("Accept", ""))[1]
    except TypeError:
        # choose_encoder raises TypeError if the version in the Accept header is not a number.
        return "text"
    return "openmetrics" if content_type.startswith("application/openmetrics-text") else "text"

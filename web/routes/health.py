"""Routes for operators and monitoring: liveness, readiness, metrics."""

from apiflask import APIBlueprint
from flask import Response, request
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from shared.errors import StoreUnavailable
from shared.metrics import MAX_TENANTS
from web.http.process_metrics import package_version
from web.operations.request_caller import require_admin
from web.operations.responses import json_response, store_away_response
from web.operations.snapshots import read_snapshot
from web.runtime.current import current_context
from web.runtime.fleet_metrics import fleet_registry

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
    """Answer 200 if the store answers, at least one worker is live and the system is not draining; otherwise 503."""
    context = current_context()
    try:
        snapshot = read_snapshot(context)
    except StoreUnavailable:
        return store_away_response(context)
    workers = sum(worker.live for worker in snapshot.workers)
    reason = "no_worker" if workers == 0 else "draining" if snapshot.draining else None
    body = {"status": "ready" if reason is None else "not_ready", "reason": reason, "workers": workers}
    return json_response(body, 200 if reason is None else 503)


@bp.get("/metrics")
@bp.doc(
    summary="Read the metrics of this process, for Prometheus",
    responses={200: "The metrics in Prometheus text format"},
)
def process_metrics() -> Response:
    """Return the metrics that this process keeps in its own memory, without those that are kept in the store."""
    context = current_context()
    context.metrics.followed_jobs.set(context.event_hub.followed)
    return _exposition(context.metrics.scrape_registry())


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
    return _exposition(fleet_registry(read_snapshot(current_context(), tenants=MAX_TENANTS)))


def _exposition(registry: CollectorRegistry) -> Response:
    try:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    except TypeError:
        # choose_encoder raises TypeError if the version in the Accept header is not a number.
        encode, content_type = choose_encoder("")
    return Response(encode(registry), content_type=content_type)

"""For operators and their machines: liveness, readiness, metrics."""

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
from web.runtime.current import current_door
from web.runtime.fleet_metrics import fleet_registry

bp = APIBlueprint("health", __name__, tag="Operators")


@bp.get("/health")
@bp.doc(summary="This process answers", responses={200: "It does"})
def health() -> Response:
    """Nothing but this process is asked."""
    return json_response({"status": "ok", "version": package_version()})


@bp.get("/health/ready")
@bp.doc(summary="A job could be admitted", responses={200: "It could", 503: "Why not"})
def ready() -> Response:
    """The store answers, at least one worker is live, and nobody drains the system."""
    context = current_door()
    try:
        snapshot = read_snapshot(context)
    except StoreUnavailable:
        return store_away_response(context)
    workers = sum(worker.live for worker in snapshot.workers)
    reason = "no_worker" if workers == 0 else "draining" if snapshot.draining else None
    body = {"status": "ready" if reason is None else "not_ready", "reason": reason, "workers": workers}
    return json_response(body, 200 if reason is None else 503)


@bp.get("/metrics")
@bp.doc(summary="Metrics of this process, for Prometheus", responses={200: "Text exposition"})
def process_metrics() -> Response:
    """What this one process counted."""
    context = current_door()
    context.metrics.followed.set(context.event_hub.followed)
    return _exposition(context.metrics.scrape_registry())


@bp.get("/metrics/fleet")
@bp.doc(summary="Metrics of the whole system, for Prometheus", responses={200: "Text exposition"})
def fleet_metrics() -> Response:
    """Out of the store: every ingress answers the same. Names tenants, so it is for operators."""
    require_admin()
    return _exposition(fleet_registry(read_snapshot(current_door(), tenants=MAX_TENANTS)))


def _exposition(registry: CollectorRegistry) -> Response:
    try:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    except TypeError:
        # It compares the version that is asked for, which may be no number.
        encode, content_type = choose_encoder("")
    return Response(encode(registry), content_type=content_type)

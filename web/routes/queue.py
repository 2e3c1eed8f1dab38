"""`/v1/queue`: a tenant's own bounds and depth."""

from typing import Any

from apiflask import APIBlueprint
from flask import Response

from shared import keys
from shared.answers import Snapshot
from shared.config import Settings
from shared.settings_table import AUTO
from shared.storefaults import store_faults
from shared.tenants import TenantPolicy
from web.answers import json_response
from web.auth import caller
from web.context import door
from web.patience import longest_ms

bp = APIBlueprint("queue", __name__, tag="Jobs")


@bp.get("/v1/queue")
@bp.doc(summary="Own bounds and depth", responses={200: "What waits, what runs, and how much of it may"})
def own_queue() -> Response:
    """What this tenant has waiting and running, and what it may have."""
    here, who = door(), caller()
    with here.metrics.script("snapshot"):
        snapshot = here.store.snapshot(tenants=1)
    with store_faults(here.store.client):
        counted: Any = here.store.client.hmget(keys.tenant(who.tenant), "waiting", "waiting_tokens", "running")
    waiting, waiting_tokens, running = (int(value or 0) for value in counted)
    bounds = bounds_of(here.settings, who.policy, snapshot)
    return json_response(
        {
            "object": "queue",
            "tenant": who.tenant,
            "waiting": waiting,
            "waiting_tokens": waiting_tokens,
            "running": running,
            **bounds,
            "max_deadline_ms": longest_ms(here.settings, who.policy),
            "inflight": snapshot.inflight,
            "max_inflight": snapshot.max_inflight,
            "draining": snapshot.draining,
        }
    )


def bounds_of(settings: Settings, policy: TenantPolicy | None, snapshot: Snapshot) -> dict[str, Any]:
    """The tenant's bounds: its policy's, else the settings', where `auto` follows the live slots (verdict.lua)."""
    policy = policy or TenantPolicy()
    slots = sum(worker.slots for worker in snapshot.workers if worker.live)
    jobs = max(16, 2 * slots) if settings.max_queue_size == AUTO else settings.max_queue_size
    return {
        "max_waiting": policy.max_waiting or jobs,
        "max_waiting_tokens": policy.max_waiting_tokens or settings.max_queue_tokens,
        "weight": policy.weight or 1,
    }

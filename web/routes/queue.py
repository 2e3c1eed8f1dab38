"""`/v1/queue`: a tenant's own bounds and depth."""

from typing import Any

from apiflask import APIBlueprint
from flask import Response

from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.settings.table import AUTO
from shared.store.replies import Snapshot
from web.api.deadline import max_deadline_ms
from web.operations.request_caller import caller
from web.operations.responses import json_response
from web.operations.snapshots import count_tenant, read_snapshot
from web.runtime.current import current_door

bp = APIBlueprint("queue", __name__, tag="Jobs")


@bp.get("/v1/queue")
@bp.doc(summary="Own bounds and depth", responses={200: "What waits, what runs, and how much of it may"})
def own_queue() -> Response:
    """What this tenant has waiting and running, and what it may have."""
    context, who = current_door(), caller()
    snapshot, counts = read_snapshot(context), count_tenant(context, who.tenant)
    bounds = bounds_of(context.settings, who.policy, snapshot)
    return json_response(
        {
            "object": "queue",
            "tenant": who.tenant,
            "waiting": counts.waiting,
            "waiting_tokens": counts.waiting_tokens,
            "running": counts.running,
            **bounds,
            "max_deadline_ms": max_deadline_ms(context.settings, who.policy),
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

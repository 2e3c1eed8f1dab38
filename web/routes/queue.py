"""`/v1/queue` and `/v1/usage`: the jobs and the bounds of the calling tenant, and the usage of one or all tenants."""

from apiflask import APIBlueprint
from flask import Response, request

from web.api.deadline import max_deadline_ms
from web.jobs.snapshots import bounds_of, count_tenant, read_usage
from web.request.caller import current_caller, require_admin, wants_all_tenants
from web.request.responses import json_response
from web.runtime.current import current_context

bp = APIBlueprint("queue", __name__, tag="Jobs")


@bp.get("/v1/queue")
@bp.doc(responses={200: "The number of the tenant's queued and running jobs, and the tenant's bounds"})
def own_queue() -> Response:
    """Read how many jobs the tenant has, and its bounds."""
    context, caller = current_context(), current_caller()
    overview, counts = context.overview(), count_tenant(context, caller.tenant)
    bounds = bounds_of(context.settings, caller.policy, overview)
    return json_response(
        {
            "object": "queue",
            "tenant": caller.tenant,
            **counts,
            **bounds,
            "max_deadline_ms": max_deadline_ms(context.settings, caller.policy),
            "inflight": overview.inflight,
            "max_inflight": overview.max_inflight,
            "draining": overview.draining,
        }
    )


@bp.get("/v1/usage")
@bp.doc(responses={200: "The sums, by the dimensions in `by`"})
def own_usage() -> Response:
    """Read what the tenant has used.

    The sums of the jobs that ended and of their tokens, on up to 31 days (UTC). With `all`, which requires an admin
    key, the sums are those of all tenants.
    """
    if wants_all_tenants():
        require_admin()
    tenant = None if wants_all_tenants() else current_caller().tenant
    given = request.args
    found = read_usage(current_context(), tenant, by=given.get("by"), first=given.get("from"), last=given.get("to"))
    return json_response(found)

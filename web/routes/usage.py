"""`/v1/usage`: the usage of the calling tenant or, for operators, of all tenants."""

from apiflask import APIBlueprint
from flask import Response, request

from web.jobs.snapshots import read_usage
from web.request.caller import current_caller, require_admin, wants_all_tenants
from web.request.responses import json_response
from web.runtime.current import current_context

bp = APIBlueprint("usage", __name__, tag="Jobs")


@bp.get("/v1/usage")
@bp.doc(
    summary="Read what the tenant has used",
    description="The sums of the jobs that ended and of their tokens, on up to 31 days (UTC). With `all`, which "
    "requires an admin key, the sums are those of all tenants.",
    responses={200: "The sums, by the dimensions in `by`"},
)
def own_usage() -> Response:
    """Return the sums of the tenant's usage or, for operators who ask for it, of all tenants' usage."""
    if wants_all_tenants():
        require_admin()
    tenant = None if wants_all_tenants() else current_caller().tenant
    given = request.args
    found = read_usage(current_context(), tenant, by=given.get("by"), first=given.get("from"), last=given.get("to"))
    return json_response(found)

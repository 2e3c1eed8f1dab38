"""Offers the job of a request: all HTTP routes, batches and the gate call `offer`. It is the one place that spills.

A job is offered to its tenant's home. If that cell is busy, cannot serve or is away, the job is offered once more, to
the tenant's next cell, unless the request has a key that must be unique: such a request is offered to the home only, so
that its key holds as exactly as with one store.
"""

import time
from collections.abc import Callable
from functools import partial

from shared.errors import StoreUnavailable
from shared.jobs.outcomes import Refusal, Refused
from shared.log import LimitedEvents
from shared.store import keys
from shared.store.redis_errors import store_faults
from shared.store.repeat_lookup import EarlierRequest
from web.api.deadline import max_deadline_ms
from web.api.refusals import LONGEST_HINT_MS, Yield, to_yield
from web.http.api_errors import ApiError
from web.jobs.admission import AdmittedJob, offer_in_cell
from web.jobs.callers import Caller
from web.jobs.generation import GenerationRequest
from web.runtime.context import DoorContext

_SPILLED = LimitedEvents("job.spilled")

#: The refusals that are about the load or the workers of a cell, so that another one may have room. The others are
#: about the tenant or the request: they would be the same there, or a tenant would get round its bound.
_MAY_SPILL = frozenset(
    {
        Refusal.INFLIGHT_FULL,
        Refusal.TENANT_SHARE_FULL,
        Refusal.BACKLOG_FULL,
        Refusal.DEADLINE_UNMEETABLE,
        Refusal.NO_WORKER,
        Refusal.LOAD_FAILED,
        Refusal.DRAINING,
    }
)

#: This long after a change of the directory, in ms, each door has read it, and no job is offered in an earlier cell.
_SETTLED_MS = 10_000


def offer(context: DoorContext, caller: Caller, generation: GenerationRequest) -> AdmittedJob | Yield:
    """Offer a job to a cell of the caller's tenant and return the verdict. `context` is that of the request.

    Raises what `offer_in_cell` raises. If two cells refuse the job, the verdict and its hint are of the first one; if
    the first one is away, they are of the second.
    """
    cells = context.cells
    cells.require_read()
    if cells.directory is None or generation.line is not None:
        return offer_in_cell(context, caller, generation)
    homes = cells.of_tenant(caller.tenant)
    is_keyed = generation.idem_digest is not None or generation.supersede_key is not None
    found = _cell_of_repeat(homes, context, caller, generation)
    if found is not None or (is_keyed and homes):
        return _offer_to_one(found or homes[0], caller, generation)
    if not homes:
        return _no_cell(caller, generation)
    if generation.private or (caller.policy is not None and caller.policy.private):
        homes = tuple(home for home in homes if _region(home) == _region(homes[0]))
    first, *others = sorted(homes, key=cells.is_away)
    if not others or cells.is_away(others[0]):
        return _offer_to_one(first, caller, generation)
    return _offer_to_two(first, others[0], caller, generation)


def _offer_to_one(cell: DoorContext, caller: Caller, generation: GenerationRequest) -> AdmittedJob | Yield:
    if cell.cells.is_away(cell):
        # No request waits for a store that is known to hang: too many connections would be open meanwhile.
        raise StoreUnavailable(f"the store of cell {cell.cell} does not answer")
    try:
        return offer_in_cell(cell, caller, generation)
    except StoreUnavailable:
        cell.cells.suspect(cell)
        raise


def _offer_to_two(
    first: DoorContext, second: DoorContext, caller: Caller, generation: GenerationRequest
) -> AdmittedJob | Yield:
    refusal: Yield | None = None
    fault: StoreUnavailable | None = None
    reason = Refusal.STORE_UNAVAILABLE.value
    try:
        verdict = offer_in_cell(first, caller, generation)
        if not isinstance(verdict, Yield) or not _may_spill(verdict):
            return verdict
        refusal, reason = verdict, verdict.body["reason"]
    except StoreUnavailable as error:
        first.cells.note_away(first)
        fault = error
    try:
        spilled = offer_in_cell(second, caller, generation)
    except (ApiError, StoreUnavailable) as error:
        # Nothing that the second cell lacks, such as the model, is the request's fault.
        if isinstance(error, StoreUnavailable):
            second.cells.note_away(second)
        if refusal is not None:
            return refusal
        raise fault or error from None
    if isinstance(spilled, AdmittedJob):
        first.metrics.spills.labels(reason).inc()
        _SPILLED.log("info", (caller.tenant, reason), tenant=caller.tenant, reason=reason, cell=second.cell)
        return spilled
    return refusal or spilled


def _may_spill(refusal: Yield) -> bool:
    # Without a hint, not even an idle cell could meet the deadline.
    return refusal.body["reason"] in _MAY_SPILL and refusal.body["retry_hint_ms"] is not None


def _region(context: DoorContext) -> str:
    directory = context.cells.directory
    return "" if directory is None else directory.cells[context.cell].region


def _no_cell(caller: Caller, generation: GenerationRequest) -> Yield:
    """Return the refusal of a job whose tenant has no cell that takes new jobs."""
    refused = Refused(Refusal.DRAINING, "serving_cells", 0, 0, 0, 0, LONGEST_HINT_MS)
    return to_yield(refused, tenant=caller.tenant, model=generation.model or "", deadline=generation.deadline)


def _cell_of_repeat(
    homes: tuple[DoorContext, ...], context: DoorContext, caller: Caller, generation: GenerationRequest
) -> DoorContext | None:
    """Return the cell, other than the home, in which an earlier request like this one was admitted, if there is one.

    Only requests that can be recognized are looked for: those with an Idempotency-Key, or with an id from the client's
    x-request-id.
    """
    if generation.idem_digest is None and not generation.has_known_id:
        return None
    kept_ms = max_deadline_ms(context.settings, caller.policy) + context.settings.result_ttl_s * 1_000

    def identity(other: DoorContext) -> EarlierRequest:
        return EarlierRequest(generation.idem_digest or "", other.job_id(generation.job_id))

    first, has_jobs = homes[0] if homes else None, partial(_has_jobs, tenant=caller.tenant)
    return other_cell_of_repeat(first, caller.tenant, context, identity, kept_ms=kept_ms, has_any=has_jobs)


def _has_jobs(cell: DoorContext, tenant: str) -> bool:
    with store_faults(cell.store.client):
        return bool(cell.store.client.exists(keys.jobs(tenant)))


def other_cell_of_repeat(
    first: DoorContext | None,
    tenant: str,
    context: DoorContext,
    identity: Callable[[DoorContext], EarlierRequest],
    *,
    kept_ms: int,
    has_any: Callable[[DoorContext], bool] | None = None,
) -> DoorContext | None:
    """Return the cell, other than the `first`, that has what an earlier request has made, or None.

    The earlier request can have been served by one of the tenant's other cells. For `kept_ms` after the directory has
    changed, which is as long as what it has made is kept, that can be any cell; likewise at any time if doors of other
    regions have other cells for the tenant. Cells that are away are left out.
    `identity` is that of the request in a cell. With `has_any`, which returns whether a cell has any such thing of the
    tenant, the others are asked for that once, soon after a change, and not for each request.
    """
    cells, directory = context.cells, context.cells.directory
    if directory is None:
        return None
    age_ms, asked = time.time() * 1_000 - directory.changed_ms, cells.of_tenant(tenant)
    if cells.differs_by_door(tenant):
        asked += tuple(other for other in cells.all() if other not in asked)
    elif age_ms < kept_ms:
        earlier = cells.earlier_cells(tenant, has_any, is_settled=age_ms > _SETTLED_MS) if has_any else cells.all()
        asked += tuple(other for other in earlier if other not in asked)
    for other in asked:
        if other is first or cells.is_away(other):
            continue
        try:
            if identity(other).was_admitted(other.store.client, tenant):
                return other
        except StoreUnavailable:
            cells.note_away(other)
    return None

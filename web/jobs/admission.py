"""Turn a request into a job and offer the job to the store; web/jobs/spilling.py chooses the cell."""

from dataclasses import dataclass, replace
from functools import partial

import redis

from shared.accounts.webhook_secrets import WebhookSecrets
from shared.errors import StoreUnavailable, Unconfirmed
from shared.jobs.job import JobView, NewJob
from shared.jobs.outcomes import Refused
from shared.log import LimitedEvents
from shared.settings.door import DoorSettings
from shared.settings.webhook_hosts import parse_hosts
from shared.store.repeat_lookup import EarlierRequest
from shared.store.replies import Admitted, IdempotencyMismatch, Quote, RouteChanged, StaleClaim
from shared.store.webhooks import Webhooks
from shared.tracing.names import Attribute, SpanName
from web.api.body import digest
from web.api.refusals import Yield, to_yield, with_return_ticket
from web.http.api_errors import ApiError, invalid_field
from web.http.callback_url import check_allowed, parse_url
from web.jobs.callers import Caller
from web.jobs.generation import GenerationRequest
from web.jobs.new_job import make_job
from web.runtime.context import DoorContext

#: By tenant and reason, so that a flood of one tenant hides no refusal of another.
_REFUSALS = LimitedEvents("job.refused")

#: If a call of the admit script fails within this time, in seconds, it is sent once more. A call on a broken connection
#: fails immediately, and a second call opens a new connection. A call that fails later has used up the store timeout of
#: one second (shared/store/connection.py), and the client must not wait for a second timeout.
_RETRY_WITHIN_S = 0.25

#: The store's answer to an offer.
Answer = Admitted | Refused | IdempotencyMismatch | RouteChanged | StaleClaim
#: How often the door reads a route again that an operator has changed just now, before it gives up.
_ROUTE_READINGS = 3


class LineNotOpen(Exception):
    """A line's job was not admitted: the claim of the batch has ended, or the line needs no job any more."""


@dataclass(frozen=True)
class AdmittedJob:
    """A job that this request, or an earlier one with the same request id or Idempotency-Key, has admitted."""

    view: JobView
    #: True if an earlier request admitted the job.
    repeated: bool


def offer_in_cell(context: DoorContext, caller: Caller, generation: GenerationRequest) -> AdmittedJob | Yield:
    """Offer a job to the store of one cell and return the store's verdict, about which a span is written.

    Raises ApiError if the request must be changed before it can be admitted, and StoreUnavailable if the store does not
    answer, or if fewer than PENSTOCK_ACK_REPLICAS replicas have the job. After StoreUnavailable, a job that the store
    did admit is canceled as soon as the store answers again. Raises LineNotOpen for a line of a batch.
    """
    attributes = {Attribute.TENANT: caller.tenant, Attribute.MODEL: generation.model}
    with context.traces.begin(SpanName.ADMISSION, generation.traceparent, attributes) as span:
        if span.traceparent and not generation.traceparent:
            generation = generation.replaced(traceparent=span.traceparent)
        verdict = _offer(context, caller, generation)
        if isinstance(verdict, Yield):
            reason, hint_ms = verdict.body["reason"], verdict.body["retry_hint_ms"]
            span.set({Attribute.VERDICT: "refused", Attribute.REASON: reason, Attribute.RETRY_HINT_MS: hint_ms})
        else:
            span.set({Attribute.VERDICT: "admitted", Attribute.JOB: verdict.view.id})
        return verdict


def _offer(context: DoorContext, caller: Caller, generation: GenerationRequest) -> AdmittedJob | Yield:
    _check_callback(context, caller, generation)
    job, answer = _offer_once(context, caller, generation)
    while isinstance(answer, Admitted) and answer.taken_back:
        # An earlier request with the same request id was admitted, but the answer was lost, so the door canceled that
        # job. The new job's id is derived from the old id, so that every repeat of the request finds the new job.
        job = replace(job, id=context.job_id(digest("anew", job.id)[:32]))
        answer = _admit(context, job, generation.attempt)
    if isinstance(answer, RouteChanged):
        raise StoreUnavailable(f"route {job.model!r} was changed while the request was offered")
    if isinstance(answer, StaleClaim):
        raise LineNotOpen(job.id)
    if isinstance(answer, IdempotencyMismatch):
        raise ApiError(
            "idempotency_mismatch",
            f"this Idempotency-Key was already used for job {answer.id}, with a different request body",
            param="Idempotency-Key",
        )
    if isinstance(answer, Refused):
        _REFUSALS.log(
            "info",
            (caller.tenant, answer.reason),
            tenant=caller.tenant,
            key_label=caller.key_label,
            model=job.model,
            reason=answer.reason.value,
            retry_hint_ms=answer.retry_hint_ms,
        )
        answer_yield = to_yield(
            answer,
            tenant=caller.tenant,
            model=job.model,
            deadline=generation.deadline,
            bound_status=context.settings.tenant_bound_status,
        )
        ticket = context.return_tickets.sign(job.tenant, job.model, generation.return_id, answer.retry_ms)
        return with_return_ticket(answer_yield, ticket, answer.return_window_ms)
    return AdmittedJob(answer.view or _read_repeated(context, answer, job), answer.again)


def _check_callback(context: DoorContext, caller: Caller, generation: GenerationRequest) -> None:
    if generation.callback_url:
        earlier = EarlierRequest(generation.idem_digest or "", context.job_id(generation.job_id))
        check_callback(context.store.client, context.settings, caller.tenant, generation.callback_url, earlier)


def _offer_once(context: DoorContext, caller: Caller, generation: GenerationRequest) -> tuple[NewJob, Answer]:
    """Return the job and the store's answer; if the route was changed meanwhile, read it again."""
    for _ in range(_ROUTE_READINGS):
        job = make_job(context, caller, generation, context.pools.resolve_target(generation.model, caller.policy))
        answer = context.repeated_refusals.offer(job, partial(_admit, context, job, generation.attempt))
        if not isinstance(answer, RouteChanged):
            break
        context.pools.refresh()
    return job, answer


def quote(context: DoorContext, caller: Caller, generation: GenerationRequest) -> tuple[NewJob, Quote]:
    """Return the job that `offer` would offer now, and the store's quote: its cost, its eta and the verdict on it.

    Nothing is written to the store. Raises ApiError and StoreUnavailable in the same cases as `offer`.
    """
    _check_callback(context, caller, generation)
    for _ in range(_ROUTE_READINGS):
        job = make_job(context, caller, generation, context.pools.resolve_target(generation.model, caller.policy))
        with context.metrics.time_script("quote"):
            answer = context.store.quote(job)
        if isinstance(answer, Quote):
            return job, answer
        context.pools.refresh()
    raise StoreUnavailable(f"route {job.model!r} was changed while it was quoted")


def _admit(context: DoorContext, job: NewJob, attempt: int) -> Answer:
    began_s, is_last = context.clock.monotonic(), False
    while True:
        try:
            with context.metrics.time_script("admit"):
                return context.store.admit(job, attempt=attempt, ack_replicas=context.settings.ack_replicas)
        except StoreUnavailable as error:
            if is_last or context.clock.monotonic() - began_s > _RETRY_WITHIN_S:
                context.in_doubt.add(_job_in_doubt(job, error), job.offer)
                raise
        is_last = True


def _job_in_doubt(job: NewJob, error: StoreUnavailable) -> str:
    """Return the id of the job that an offer of `job` may have admitted, or has found by its Idempotency-Key."""
    return error.job_id if isinstance(error, Unconfirmed) else job.id


def _read_repeated(context: DoorContext, admitted: Admitted, job: NewJob) -> JobView:
    try:
        with context.metrics.time_script("touch"):
            view = context.store.touch(admitted.id, tenant=job.tenant)
    except StoreUnavailable:
        # The client receives a refusal, so the job must be canceled later. The cancel names this offer. It has
        # no effect if, before it is sent, the client repeats the request and receives this job as the answer.
        context.in_doubt.add(admitted.id, job.offer)
        raise
    if view is None:
        raise StoreUnavailable("the store no longer has a job that it has just admitted")
    return view


#: So many webhooks of a tenant may wait to be told. With the copies of its jobs they also count against its bytes.
MAX_PENDING = 10_000


def check_callback(client: redis.Redis, settings: DoorSettings, tenant: str, url: str, earlier: EarlierRequest) -> None:
    """Raise ApiError unless the end of a job or batch may be told to this URL. Raises StoreUnavailable.

    A repetition of a request that was admitted earlier gets that job or batch, whatever has changed since.
    """
    try:
        _check(client, settings, tenant, url)
    except ApiError:
        if not earlier.was_admitted(client, tenant):
            raise


def _check(client: redis.Redis, settings: DoorSettings, tenant: str, url: str) -> None:
    try:
        check_allowed(parse_url(url), parse_hosts(settings.webhook_hosts))
    except ValueError as error:
        raise invalid_field("callback_url", str(error)) from None
    if not WebhookSecrets(client).get(tenant):
        message = (
            f"callback_url needs a secret for signatures, and tenant {tenant!r} has none: an operator sets it with "
            f"`penstock tenants set {tenant} --webhook-secret-file FILE`"
        )
        raise invalid_field("callback_url", message)
    pending = Webhooks(client).count_of(tenant)
    if pending >= MAX_PENDING:
        message = (
            f"{pending} webhooks of tenant {tenant!r} are not told yet, the most that may wait: is its receiver away?"
        )
        limits = {"limit": "tenant_webhooks", "value": pending, "max": MAX_PENDING}
        raise ApiError("webhooks_full", message, param="callback_url", limits=limits)

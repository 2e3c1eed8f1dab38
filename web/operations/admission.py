"""Turn a request into a job and offer the job to the store; all HTTP routes and the gate call `offer` for this."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from shared.errors import StoreUnavailable, Unconfirmed
from shared.jobs import cost
from shared.jobs.job import JobView, NewJob, new_job_id
from shared.jobs.outcomes import Refused
from shared.settings.settings import Settings
from shared.store.replies import Admitted, IdempotencyMismatch, Quote
from web.api.deadline import RequestDeadline
from web.api.digests import body_digest, digest, given_fields
from web.api.job_json import LONGEST_POLL_MS
from web.api.refusals import Yield, to_yield, with_return_ticket
from web.api.request_schema import SubmitBody
from web.http.api_errors import ApiError
from web.operations.callers import Caller
from web.runtime.context import DoorContext
from web.runtime.model_pools import Model

log = structlog.get_logger()

#: If a call of the admit script fails within this time, in seconds, it is sent once more. A call on a broken connection
#: fails immediately, and a second call opens a new connection. A call that fails later has used up the store timeout of
#: one second (shared/store/connection.py), and the client must not wait for a second timeout.
_RETRY_WITHIN_S = 0.25


@dataclass(frozen=True)
class GenerationRequest:
    """One request for generation or embeddings, as a route parsed it."""

    #: The input of the engine: the prompt, messages or texts to embed, the sampling fields, and response_format.
    payload: dict[str, Any]
    deadline: RequestDeadline
    model: str | None
    max_tokens: int | None
    #: The value of max_tokens to assume if the request has none. It is reduced if it does not fit the context.
    default_max_tokens: int
    metadata: dict[str, str] = field(default_factory=dict)
    #: The job is canceled if no client polls it for this long. If None, PENSTOCK_POLL_GRACE_MS applies.
    poll_grace_ms: int | None = None
    job_id: str = field(default_factory=new_job_id)
    #: Deduplication id for refusals: when a proxy repeats a refused request, the tenant's appointment does not move a
    #: second time. If None, the job's id is used.
    dedup_id: str | None = None
    #: The digest of the Idempotency-Key, or None if the request has none.
    idem_digest: str | None = None
    #: The digest of the body, by which a refused request is recognized when its client sends it again.
    body_digest: str = ""
    #: How many times the client has sent this request before.
    attempt: int = 0
    #: The return ticket that the client sent, or "". One that is not valid for this request counts as none.
    return_ticket: str = ""
    traceparent: str = ""
    #: When this job is admitted, the tenant's older job with the same key is canceled.
    supersede_key: str | None = None
    #: False if the client would rather be refused than receive a shortened answer.
    degrade: bool = True
    #: Small facts that are stored with the job, because a route needs them to build later responses (JobView.form).
    form: dict[str, Any] = field(default_factory=dict)


def native_request(body: SubmitBody, deadline: RequestDeadline, settings: Settings) -> GenerationRequest:
    """Build the request from a body of `POST /v1/jobs`; the caller adds what arrived in headers or the gate's frame."""
    return GenerationRequest(
        payload=body.payload(),
        deadline=deadline,
        model=body.model,
        max_tokens=body.max_tokens,
        default_max_tokens=settings.default_max_tokens,
        metadata=body.metadata or {},
        poll_grace_ms=body.poll_grace_ms,
        supersede_key=body.supersede_key,
        degrade=body.degrade,
        body_digest=body_digest(given_fields(body)),
        return_ticket=body.return_ticket or "",
    )


@dataclass(frozen=True)
class AdmittedJob:
    """A job that this request, or an earlier one with the same request id or Idempotency-Key, has admitted."""

    view: JobView
    #: True if an earlier request admitted the job.
    repeated: bool


def offer(context: DoorContext, caller: Caller, generation: GenerationRequest) -> AdmittedJob | Yield:
    """Offer a job to the store and return the store's verdict.

    Raises ApiError if the request must be changed before it can be admitted, and StoreUnavailable if the store does not
    answer, or if fewer than PENSTOCK_ACK_REPLICAS replicas have the job. After StoreUnavailable, a job that the store
    did admit is canceled as soon as the store answers again.
    """
    model = context.pools.resolve(generation.model, caller.policy)
    job = _new_job(context, caller, generation, model)
    answer = _admit(context, job, generation.attempt)
    while isinstance(answer, Admitted) and answer.taken_back:
        # An earlier request with the same request id was admitted, but the answer was lost, so the door canceled that
        # job. The new job's id is derived from the old id, so that every repeat of the request finds the new job.
        job = replace(job, id=digest("anew", job.id)[:32])
        answer = _admit(context, job, generation.attempt)
    if isinstance(answer, IdempotencyMismatch):
        raise ApiError(
            "idempotency_mismatch",
            f"this Idempotency-Key was already used for job {answer.id}, with a different request body",
            param="Idempotency-Key",
        )
    if isinstance(answer, Refused):
        log.info(
            "job.refused",
            tenant=caller.tenant,
            key_label=caller.key_label,
            model=model.name,
            reason=answer.reason.value,
            retry_hint_ms=answer.retry_hint_ms,
        )
        answer_yield = to_yield(
            answer,
            tenant=caller.tenant,
            model=model.name,
            deadline=generation.deadline,
            bound_status=context.settings.tenant_bound_status,
        )
        ticket = context.return_tickets.sign(job.tenant, job.model, job.return_id, answer.retry_ms)
        return with_return_ticket(answer_yield, ticket, answer.return_window_ms)
    return AdmittedJob(_read_admitted(context, answer, job), answer.again)


def quote(context: DoorContext, caller: Caller, generation: GenerationRequest) -> tuple[NewJob, Quote]:
    """Return the job that `offer` would offer now, and the store's quote: its cost, its eta and the verdict on it.

    Nothing is written to the store. Raises ApiError and StoreUnavailable in the same cases as `offer`.
    """
    job = _new_job(context, caller, generation, context.pools.resolve(generation.model, caller.policy))
    with context.metrics.time_script("quote"):
        answer = context.store.quote(
            job.tenant,
            job.model,
            prompt_tokens=job.prompt_tokens,
            max_tokens=job.max_tokens,
            deadline_ms=job.deadline_ms,
            start_within_ms=job.start_within_ms or 0,
            degrade=job.degrade,
            key_id=job.key_id,
            key_bounds=job.key_bounds,
            request_bytes=_json_bytes(job.payload),
            metadata_bytes=_json_bytes(generation.metadata),
            answer_bytes=job.answer_bytes,
        )
    return job, answer


def _json_bytes(value: Mapping[str, Any]) -> int:
    """Return the length of a value as JSON in UTF-8, as it is stored."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def _admit(context: DoorContext, job: NewJob, attempt: int) -> Admitted | Refused | IdempotencyMismatch:
    began_s, ack_replicas = context.clock.monotonic(), context.settings.ack_replicas
    try:
        with context.metrics.time_script("admit"):
            return context.store.admit(job, attempt=attempt, ack_replicas=ack_replicas)
    except StoreUnavailable as error:
        if context.clock.monotonic() - began_s > _RETRY_WITHIN_S:
            context.in_doubt.add(_job_in_doubt(job, error), job.offer)
            raise
    try:
        with context.metrics.time_script("admit"):
            return context.store.admit(job, attempt=attempt, ack_replicas=ack_replicas)
    except StoreUnavailable as error:
        context.in_doubt.add(_job_in_doubt(job, error), job.offer)
        raise


def _job_in_doubt(job: NewJob, error: StoreUnavailable) -> str:
    """Return the id of the job that an offer of `job` may have admitted, or has found by its Idempotency-Key."""
    return error.job_id if isinstance(error, Unconfirmed) else job.id


def _read_admitted(context: DoorContext, admitted: Admitted, job: NewJob) -> JobView:
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


def _new_job(context: DoorContext, caller: Caller, generation: GenerationRequest, model: Model) -> NewJob:
    _check_model_kind(generation, model)
    prompt_tokens = model.estimate(generation.payload)
    max_tokens = _max_tokens(generation, model, prompt_tokens)
    grace_ms = context.settings.poll_grace_ms if generation.poll_grace_ms is None else generation.poll_grace_ms
    ticket_id, ticket_ms = context.return_tickets.read(generation.return_ticket, caller.tenant, model.name)
    payload = generation.payload | ({"metadata": generation.metadata} if generation.metadata else {})
    if generation.max_tokens is not None:
        # A job fails in the engine if the max_tokens in its payload does not fit the context. The default is therefore
        # not written into the payload: without max_tokens, the engine shortens the answer to fit.
        payload["max_tokens"] = generation.max_tokens
    return NewJob(
        id=generation.job_id,
        tenant=caller.tenant,
        model=model.name,
        payload=payload,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        deadline_ms=generation.deadline.deadline_ms,
        deadline_source=generation.deadline.source,
        start_within_ms=generation.deadline.start_within_ms,
        start_named=generation.deadline.start_within_ms is not None and generation.deadline.start_source == "body",
        # The grace is at least three times the longest poll interval, so that a client that obeys `poll_after_ms` never
        # loses its job.
        poll_grace_ms=max(grace_ms, 3 * LONGEST_POLL_MS) if grace_ms else None,
        dedup_id=generation.dedup_id,
        idem_digest=generation.idem_digest,
        body_digest=generation.body_digest,
        ticket_id=ticket_id,
        ticket_ms=ticket_ms,
        key_label=caller.key_label,
        key_id=caller.key_id,
        key_bounds=caller.key_bounds,
        traceparent=generation.traceparent,
        form=generation.form,
        supersede_digest=(None if generation.supersede_key is None else digest("supersede", generation.supersede_key)),
        degrade=_may_be_cut(caller, generation),
        offer=secrets.token_hex(8),
    )


def _may_be_cut(caller: Caller, generation: GenerationRequest) -> bool:
    """Return whether the job's answer may be shortened under overload.

    The tenant's policy and the request must both allow degradation. A request with a response_format is never
    degraded, because a shortened answer would not conform to that format.
    """
    return (
        caller.policy is not None
        and caller.policy.degrade
        and generation.degrade
        and "response_format" not in generation.payload
    )


def _check_model_kind(generation: GenerationRequest, model: Model) -> None:
    """Raise ApiError if the request asks a text model for embeddings, or an embedding model for text.

    A model without a live worker, and one that an upstream serves, pass the check, because their kinds are unknown.
    """
    if not model.live or model.forwards or ("input" in generation.payload) == bool(model.pooling):
        return
    kind = "makes embeddings: use /v1/embeddings" if model.pooling else "generates text and makes no embeddings"
    raise ApiError("unsupported_parameter", f"model {model.name!r} {kind}", param="model")


def _max_tokens(generation: GenerationRequest, model: Model, prompt_tokens: int) -> int:
    """Return how many tokens the job may generate.

    The door does not know the exact length of the prompt, which only the worker can count. This function therefore
    raises ApiError only if the request does not fit the context with any tokenizer.
    """
    min_prompt_tokens = cost.lower_bound(generation.payload, words=model.counts_words)
    requested = generation.max_tokens if generation.max_tokens is not None else 1
    if model.n_ctx is not None and min_prompt_tokens + requested > model.n_ctx:
        raise ApiError(
            "context_length_exceeded",
            f"the prompt (at least {min_prompt_tokens} tokens) and max_tokens={requested} do not fit the context of "
            f"{model.name!r}, {model.n_ctx} tokens",
            param=_oversized_field(generation, min_prompt_tokens, model.n_ctx),
        )
    if generation.max_tokens is not None:
        return generation.max_tokens
    room = model.n_ctx - prompt_tokens if model.n_ctx is not None else generation.default_max_tokens
    return max(1, min(generation.default_max_tokens, room))


def _oversized_field(generation: GenerationRequest, min_prompt_tokens: int, n_ctx: int) -> str:
    """Return the name of the field that makes the request too long for the context."""
    if "input" not in generation.payload and min_prompt_tokens < n_ctx:
        return "max_tokens"
    return next(name for name in ("prompt", "messages", "input") if name in generation.payload)

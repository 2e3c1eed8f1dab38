"""Policy and request → Store.admit; all doors go through `offer`."""

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from shared.errors import StoreUnavailable
from shared.jobs import cost
from shared.jobs.job import JobView, NewJob, new_job_id
from shared.jobs.outcomes import Refused
from shared.settings.settings import Settings
from shared.store.replies import Admitted, IdempotencyMismatch, Quote
from web.api.deadline import RequestDeadline
from web.api.job_json import LONGEST_POLL_MS
from web.api.refusals import Yield, to_yield
from web.api.request_schema import SubmitBody
from web.http.api_errors import ApiError
from web.operations.callers import Caller
from web.runtime.context import DoorContext
from web.runtime.model_pools import Model

log = structlog.get_logger()

#: An admit without an answer is sent once more only while this much of the client's second has passed, in
#: seconds: a cut connection is known at once, a silent store has used the second up already.
_RETRY_WITHIN_S = 0.25


@dataclass(frozen=True)
class GenerationRequest:
    """One request for generation, as a route understood it."""

    #: What the engine reads: prompt or messages, sampling, response_format.
    payload: dict[str, Any]
    deadline: RequestDeadline
    model: str | None
    max_tokens: int | None
    #: For who names none; clipped to the context.
    default_max_tokens: int
    metadata: dict[str, str] = field(default_factory=dict)
    #: None: the setting's.
    poll_grace_ms: int | None = None
    job_id: str = field(default_factory=new_job_id)
    #: What a refusal is known again by; None: the job's id.
    asked_id: str | None = None
    idem_digest: str | None = None
    body_digest: str = ""
    #: How often the client has tried this before.
    attempt: int = 0
    traceparent: str = ""
    #: The tenant's older job of the same key is canceled when this one is admitted.
    supersede_key: str | None = None
    #: False: rather refused than answered shorter than asked for.
    degrade: bool = True
    #: What the route wants to read back with the job (JobView.form).
    form: dict[str, Any] = field(default_factory=dict)


def native_request(body: SubmitBody, deadline: RequestDeadline, settings: Settings) -> GenerationRequest:
    """What a native body asks for; what came beside the body is for the caller to add."""
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
        body_digest=body_digest(body.model_dump(exclude_none=True, exclude_unset=True)),
    )


@dataclass(frozen=True)
class Accepted:
    """The job is admitted, now or by an earlier request with the same id or Idempotency-Key."""

    view: JobView
    again: bool


def offer(context: DoorContext, caller: Caller, ask: GenerationRequest) -> Accepted | Yield:
    """Offer a job to the store.

    Raises ApiError for what cannot be served as it is, and StoreUnavailable when the store does not
    answer; in that case the job is not taken, or will be canceled when the store is back.
    """
    model = context.pools.resolve(ask.model, caller.policy)
    job = _new_job(context, caller, ask, model)
    answer = _admit(context, job, ask.attempt)
    while isinstance(answer, Admitted) and answer.taken_back:
        # By the same request id, which then names another job, and the same one each time it comes.
        job = replace(job, id=digest("anew", job.id)[:32])
        answer = _admit(context, job, ask.attempt)
    if isinstance(answer, IdempotencyMismatch):
        raise ApiError(
            "idempotency_mismatch",
            f"this Idempotency-Key belongs to job {answer.id}, whose request was another",
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
        return to_yield(
            answer,
            tenant=caller.tenant,
            model=model.name,
            deadline=ask.deadline,
            bound_status=context.settings.tenant_bound_status,
        )
    return Accepted(_first_look(context, answer, job), answer.again)


def quote(context: DoorContext, caller: Caller, ask: GenerationRequest) -> tuple[NewJob, Quote]:
    """What `offer` would do with this ask, and what it would come to; nothing is written.

    Raises ApiError and StoreUnavailable as `offer` does.
    """
    job = _new_job(context, caller, ask, context.pools.resolve(ask.model, caller.policy))
    with context.metrics.time_script("quote"):
        answer = context.store.quote(
            job.tenant,
            job.model,
            prompt_tokens=job.prompt_tokens,
            max_tokens=job.max_tokens,
            deadline_ms=job.deadline_ms,
            start_within_ms=job.start_within_ms or 0,
            degrade=job.degrade,
        )
    return job, answer


def _admit(context: DoorContext, job: NewJob, attempt: int) -> Admitted | Refused | IdempotencyMismatch:
    began_s = context.clock.monotonic()
    try:
        with context.metrics.time_script("admit"):
            return context.store.admit(job, attempt=attempt)
    except StoreUnavailable:
        if context.clock.monotonic() - began_s > _RETRY_WITHIN_S:
            context.in_doubt.add(job.id, job.offer)
            raise
    try:
        with context.metrics.time_script("admit"):
            return context.store.admit(job, attempt=attempt)
    except StoreUnavailable:
        context.in_doubt.add(job.id, job.offer)
        raise


def _first_look(context: DoorContext, admitted: Admitted, job: NewJob) -> JobView:
    try:
        with context.metrics.time_script("touch"):
            view = context.store.touch(admitted.id, tenant=job.tenant)
    except StoreUnavailable:
        # The client will hear that the job was not taken, so it must not run, unless somebody knows of it already.
        context.in_doubt.add(admitted.id, job.offer)
        raise
    if view is None:
        raise StoreUnavailable("the store forgot a job that it had just taken")
    return view


def _new_job(context: DoorContext, caller: Caller, ask: GenerationRequest, model: Model) -> NewJob:
    _check_kind(ask, model)
    prompt_tokens = model.estimate(ask.payload)
    max_tokens = _max_tokens(ask, model, prompt_tokens)
    grace_ms = context.settings.poll_grace_ms if ask.poll_grace_ms is None else ask.poll_grace_ms
    payload = ask.payload | ({"metadata": ask.metadata} if ask.metadata else {})
    if ask.max_tokens is not None:
        # The engine cuts an answer whose length nobody named to the context, and refuses a named one that does not fit.
        payload["max_tokens"] = ask.max_tokens
    return NewJob(
        id=ask.job_id,
        tenant=caller.tenant,
        model=model.name,
        payload=payload,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        deadline_ms=ask.deadline.deadline_ms,
        patience_from=ask.deadline.source,
        start_within_ms=ask.deadline.start_within_ms,
        # A client that polls when it is told to is never taken for gone.
        poll_grace_ms=max(grace_ms, 3 * LONGEST_POLL_MS) if grace_ms else None,
        asked_id=ask.asked_id,
        idem_digest=ask.idem_digest,
        body_digest=ask.body_digest,
        key_label=caller.key_label,
        traceparent=ask.traceparent,
        form=ask.form,
        supersede_digest=None if ask.supersede_key is None else digest("supersede", ask.supersede_key),
        degrade=_may_be_changed(caller, ask),
        offer=secrets.token_hex(8),
    )


def _may_be_changed(caller: Caller, ask: GenerationRequest) -> bool:
    """Whether an answer may be cut: tenant and request allow it, and half of a form that was asked for is none."""
    return caller.policy is not None and caller.policy.degrade and ask.degrade and "response_format" not in ask.payload


def _check_kind(ask: GenerationRequest, model: Model) -> None:
    """Texts to embed go to models that make embeddings, all else to the others; of those not live nothing is known."""
    if not model.live or ("input" in ask.payload) == bool(model.pooling):
        return
    does = "makes embeddings: use /v1/embeddings" if model.pooling else "continues text and makes no embeddings"
    raise ApiError("unsupported_parameter", f"model {model.name!r} {does}", param="model")


def _max_tokens(ask: GenerationRequest, model: Model, prompt_tokens: int) -> int:
    """What the job may generate. Refuses only what cannot fit by any count; the worker counts exactly."""
    least = cost.least(ask.payload, words=model.words)
    wanted = ask.max_tokens if ask.max_tokens is not None else 1
    if model.n_ctx is not None and least + wanted > model.n_ctx:
        raise ApiError(
            "context_length_exceeded",
            f"the prompt (at least {least} tokens) and max_tokens={wanted} do not fit the context of {model.name!r}, "
            f"{model.n_ctx} tokens",
            param=_too_long(ask, least, model.n_ctx),
        )
    if ask.max_tokens is not None:
        return ask.max_tokens
    room = model.n_ctx - prompt_tokens if model.n_ctx is not None else ask.default_max_tokens
    return max(1, min(ask.default_max_tokens, room))


def _too_long(ask: GenerationRequest, least: int, n_ctx: int) -> str:
    """The field at fault."""
    if "input" not in ask.payload and least < n_ctx:
        return "max_tokens"
    return next(name for name in ("prompt", "messages", "input") if name in ask.payload)


def body_digest(body: Mapping[str, Any]) -> str:
    """A digest of a request's meaning: the same for two bodies that differ in blanks or order alone."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def digest(*parts: str) -> str:
    """A digest of several texts, none of which can reach into another; fit for ids and keys."""
    return hashlib.sha256(b"".join(len(part.encode()).to_bytes(8) + part.encode() for part in parts)).hexdigest()

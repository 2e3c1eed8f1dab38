"""A request for generation or embeddings, as a route of the API has parsed it."""

from dataclasses import dataclass, field
from typing import Any

from shared.jobs.job import BatchLine, new_job_id
from shared.settings.queue import QueueSettings
from web.api.candidates import candidate_form
from web.api.deadline import RequestDeadline
from web.api.digests import body_digest, given_fields
from web.api.escalation import checks_of
from web.api.request_schema import SubmitBody


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
    #: Whether the answer may have fewer tokens than `max_tokens` if those do not fit the context.
    shortens: bool = False
    metadata: dict[str, str] = field(default_factory=dict)
    #: The job is canceled if no client polls it for this long. If None, PENSTOCK_POLL_GRACE_MS applies.
    poll_grace_ms: int | None = None
    job_id: str = field(default_factory=new_job_id)
    #: Deduplication id for refusals: when a proxy repeats a refused request, the tenant's appointment does not move a
    #: second time. If None, the job's id is used.
    dedup_id: str | None = None
    #: The digest of the Idempotency-Key, or None if the request has none.
    idem_digest: str | None = None
    #: The digest of the body, which identifies a refused request when its client sends it again.
    body_digest: str = ""
    #: How many times the client has sent this request before.
    attempt: int = 0
    #: The return ticket that the client sent, or "". One that is not valid for this request counts as none.
    return_ticket: str = ""
    traceparent: str = ""
    #: The id of the client's HTTP request, which an upstream gets too.
    request_id: str = ""
    #: When this job is admitted, the tenant's older job with the same key is canceled.
    supersede_key: str | None = None
    priority: int = 0
    #: False if the client would rather be refused than receive a shortened answer.
    degrade: bool = True
    #: Whether the prompt may be sent only to pools that are marked as local.
    private: bool = False
    #: The checks that move the job to a later pool of its route if one fails (web/api/escalation.py).
    escalate: tuple[str, ...] = ()
    #: Where the client is told of the job's end; "" for nowhere.
    callback_url: str = ""
    #: The line of a batch that this request is.
    line: BatchLine | None = None
    #: Small facts that are stored with the job, because a route needs them to build later responses (JobView.form).
    form: dict[str, Any] = field(default_factory=dict)
    #: Whether the payload is kept as long as the result, for requests that continue it.
    keeps_request: bool = False


def native_request(body: SubmitBody, deadline: RequestDeadline, settings: QueueSettings) -> GenerationRequest:
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
        priority=body.priority,
        degrade=body.degrade,
        private=body.private,
        escalate=checks_of(body.escalate, streams=False, candidates=body.n),
        form=candidate_form(body.n, pick=body.pick),
        body_digest=body_digest(given_fields(body)),
        return_ticket=body.return_ticket or "",
        callback_url=body.callback_url or "",
    )

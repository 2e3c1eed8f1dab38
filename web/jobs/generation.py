"""A request for generation or embeddings, as a route of the API has parsed it."""

from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import BaseModel

from shared.jobs.job import new_job_id
from shared.jobs.request import JobRequest
from shared.settings.queue import QueueSettings
from web.api.candidates import candidate_form
from web.api.deadline import RequestDeadline
from web.api.digests import body_digest, given_fields
from web.api.escalation import checks_of
from web.api.request_schema import SubmitBody


@dataclass(frozen=True, kw_only=True)
class GenerationRequest(JobRequest):
    """One request for generation or embeddings, as a route parsed it."""

    #: The input of the engine: the prompt, messages or texts to embed, the sampling fields, and response_format.
    payload: dict[str, Any]
    deadline: RequestDeadline
    model: str | None = None
    max_tokens: int | None = None
    #: The value of max_tokens to assume if the request has none. It is reduced if it does not fit the context.
    default_max_tokens: int
    #: Whether the answer may have fewer tokens than `max_tokens` if those do not fit the context.
    shortens: bool = False
    #: The job is canceled if no client polls it for this long. If None, PENSTOCK_POLL_GRACE_MS applies.
    poll_grace_ms: int | None = None
    job_id: str = field(default_factory=new_job_id)
    #: How many times the client has sent this request before.
    attempt: int = 0
    #: The return ticket that the client sent, or "". One that is not valid for this request counts as none.
    return_ticket: str = ""
    #: The id of the client's HTTP request, which an upstream gets too.
    request_id: str = ""
    #: When this job is admitted, the tenant's older job with the same key is canceled.
    supersede_key: str | None = None
    #: False if the client would rather be refused than receive a shortened answer.
    degrade: bool = True
    #: Whether the prompt may be sent only to pools that are marked as local.
    private: bool = False
    #: The checks that move the job to a later pool of its route if one fails (web/api/escalation.py).
    escalate: tuple[str, ...] = ()


def named_fields(body: BaseModel) -> dict[str, Any]:
    """Return the fields of a body that a GenerationRequest has under the same names. Those that are None are left out.

    The caller adds those that have to be converted.
    """
    names = {each.name for each in fields(GenerationRequest)} & type(body).model_fields.keys()
    return {name: value for name in names if (value := getattr(body, name)) is not None}


def native_request(body: SubmitBody, deadline: RequestDeadline, settings: QueueSettings) -> GenerationRequest:
    """Build the request from a body of `POST /v1/jobs`; the caller adds what arrived in headers or the gate's frame."""
    converted = {
        "payload": body.payload(),
        "deadline": deadline,
        "default_max_tokens": settings.default_max_tokens,
        "escalate": checks_of(body.escalate, streams=False, candidates=body.n),
        "form": candidate_form(body.n, pick=body.pick),
        "body_digest": body_digest(given_fields(body)),
    }
    return GenerationRequest(**named_fields(body) | converted)

"""Requests for generation or embeddings, and how they are built from the bodies of the API's routes and of batches."""

from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from pydantic import BaseModel

from shared.candidates import candidates_in
from shared.jobs.job import new_job_id
from shared.jobs.request import JobRequest, kept
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.queue import QueueSettings
from web.api.body import body_digest, given_fields, validated
from web.api.candidates import candidate_form
from web.api.deadline import RequestDeadline
from web.api.file_search import FileSearch
from web.api.request_schema import SubmitBody, checks_of
from web.api.retrieval_field import Retrieval
from web.http.api_errors import ApiError
from web.openai.chat_answers import AnswerKind
from web.openai.chat_schema import COMPLETION_MAX_TOKENS, ChatWithTools, CompletionBody
from web.openai.embeddings_schema import EmbeddingsBody
from web.openai.forwarded_schema import ForwardedBody, read_forwarded
from web.openai.responses_schema import ResponsesWithTools
from web.runtime.context import DoorContext
from web.runtime.model_pools import FoundRoute, Model


@dataclass(frozen=True)
class WithFewerPassages:
    """The parts of a request that differ if its prompt has fewer passages."""

    payload: dict[str, Any]
    form: dict[str, Any]
    #: How many passages it has.
    passages: int


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
    #: The id of the job, without the name of its cell.
    job_id: str = field(default_factory=new_job_id)
    #: Whether `job_id` comes from the client's request, so that a repetition of the request has the same.
    has_known_id: bool = False
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
    followed: int | None = kept(0)
    #: Whether the prompt may be sent only to pools that are marked as local.
    private: bool = False
    #: The collection from which passages go into the prompt; None for none.
    retrieval: Retrieval | None = None
    #: The search in vector stores whose passages go into the prompt; None for none.
    file_search: FileSearch | None = None
    #: The same request with fewer passages, as payload and form; None without passages.
    fewer: WithFewerPassages | None = None
    #: The checks that move the job to a later pool of its route if one fails (web/api/request_schema.py).
    escalate: tuple[str, ...] = ()


def named_fields(body: BaseModel) -> dict[str, Any]:
    """Return the fields of a body that a GenerationRequest has under the same names. Those that are None are left out.

    The caller adds those that have to be converted.
    """
    return {name: value for name in _common_names(type(body)) if (value := getattr(body, name)) is not None}


@cache
def _common_names(body: type[BaseModel]) -> tuple[str, ...]:
    return tuple({each.name for each in fields(GenerationRequest)} & body.model_fields.keys())


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


TextBody = ChatWithTools | CompletionBody | ForwardedBody


def text_request(
    context: DoorContext, body: TextBody, kind: AnswerKind, deadline: RequestDeadline
) -> GenerationRequest:
    """Return the request for one answer to a chat or a prompt, without the values of headers."""
    payload = body.payload()
    if isinstance(body, ForwardedBody):
        form = {"forwarded": True} | candidate_form(body.candidates, choices=body.candidates)
        if kind == "chat":
            # Reasoning and calls of tools reach the client as they come, with the upstream's own ids.
            payload, form = payload | {"parts": True, "sources": True}, form | {"parts": True}
    else:
        form = _form(body, payload)
    converted = {
        "payload": payload,
        "deadline": deadline,
        "max_tokens": body.requested_max_tokens,
        "default_max_tokens": context.settings.default_max_tokens if kind == "chat" else COMPLETION_MAX_TOKENS,
        "shortens": True,
        "degrade": body.may_be_cut if isinstance(body, ForwardedBody) else body.degrade,
        "escalate": checks_of(body.escalate, streams=bool(body.stream), candidates=candidates_in(payload)),
        "form": form,
    }
    return GenerationRequest(**named_fields(body) | converted)


def response_request(context: DoorContext, body: ResponsesWithTools, deadline: RequestDeadline) -> GenerationRequest:
    """Return the request for a response, without the values of headers and the conversation before it.

    Raises ApiError.
    """
    converted = {
        "payload": body.payload(),
        "deadline": deadline,
        "max_tokens": body.max_output_tokens,
        "default_max_tokens": context.settings.default_max_tokens,
        "shortens": True,
        "escalate": checks_of(body.escalate, streams=body.stream),
        # The body is wrapped in an object, so that its digest never equals that of a body of /v1/jobs: one
        # Idempotency-Key that is used on both routes must not find the same job.
        "body_digest": body_digest({"responses": given_fields(body)}),
        "file_search": body.file_search(),
        "form": body.form(),
        "keeps_request": body.store,
        "followed": int(body.stream),
    }
    return GenerationRequest(**named_fields(body) | converted)


def embeddings_request(
    context: DoorContext, body: EmbeddingsBody, policy: TenantPolicy | None, deadline: RequestDeadline
) -> GenerationRequest:
    """Return the request for embeddings, without the values of headers. Raises ApiError."""
    target = context.pools.resolve_target(body.model, policy)
    _check_dimensions(body, target)
    return vector_request(body.payload(forwards=bool(target.forwards)), body.model, deadline)


def vector_request(payload: dict[str, Any], model: str | None, deadline: RequestDeadline) -> GenerationRequest:
    """Return a request that generates no tokens; but every job must have a max_tokens of at least 1."""
    return GenerationRequest(payload=payload, deadline=deadline, model=model, max_tokens=1, default_max_tokens=1)


def read_text_body(context: DoorContext, value: Any, kind: AnswerKind, policy: TenantPolicy | None) -> TextBody:
    """Return the validated body of a chat or a prompt. Raises ApiError."""
    forwarded = forwarded_of(context, value, kind, policy)
    if forwarded is not None:
        return forwarded
    return _own_body(value, kind)


def forwarded_of(
    context: DoorContext, value: Any, kind: AnswerKind, policy: TenantPolicy | None
) -> ForwardedBody | None:
    """Return the body of a request if its model is served by an upstream, otherwise None.

    A route with other pools too is one of upstreams only for bodies that our own engine could not serve.

    A body that is not an object, or names no model that the tenant may use, counts as one for our own engine. Raises
    ApiError and StoreUnavailable.
    """
    name = value.get("model") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not (name is None or isinstance(name, str)):
        return None
    try:
        target = context.pools.resolve_target(name, policy)
    except ApiError:
        return None
    if not target.forwards and not (
        isinstance(target, FoundRoute) and target.may_forward and not _is_ours(value, kind)
    ):
        return None
    return read_forwarded(value, chat=kind == "chat")


def _is_ours(value: dict[str, Any], kind: AnswerKind) -> bool:
    """Return whether our own engine could serve a body. Only then may any pool of its route take the request."""
    try:
        _own_body(value, kind)
    except ApiError:
        return False
    return True


def _own_body(value: Any, kind: AnswerKind) -> ChatWithTools | CompletionBody:
    return validated(ChatWithTools, value) if kind == "chat" else validated(CompletionBody, value)


def _form(body: ChatWithTools | CompletionBody, payload: dict[str, Any]) -> dict[str, Any]:
    parts = {"parts": True} if "parts" in payload else {}
    return parts | candidate_form(body.candidates, choices=body.choices)


def _check_dimensions(body: EmbeddingsBody, target: Model | FoundRoute) -> None:
    """Raise ApiError if the request names more dimensions than a model, or one of the models of a route, has."""
    for model in target.models:
        if body.dimensions is not None and model.dimensions is not None and body.dimensions > model.dimensions:
            message = f"dimensions={body.dimensions}: embeddings of {model.name!r} have {model.dimensions} dimensions"
            raise ApiError("unsupported_parameter", message, param="dimensions")

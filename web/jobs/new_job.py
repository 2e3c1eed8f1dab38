"""Makes the job that the door offers to the store for a request."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any

from shared.candidates import candidates_in
from shared.jobs import cost
from shared.jobs.fewer_passages import add_fewer
from shared.jobs.job import FewerPassages, NewJob
from shared.jobs.prompt_prefix import prefix_digests
from shared.jobs.request_texts import attachments
from shared.jobs.route import RouteReason
from shared.jobs.routing import RoutedRequest, Routing
from web.api.body import digest
from web.api.job_json import LONGEST_POLL_MS
from web.http.api_errors import ApiError, invalid_field
from web.jobs.callers import Caller
from web.jobs.generation import GenerationRequest
from web.jobs.run_again import with_kept_request
from web.openai.chat_schema import STRUCTURED
from web.runtime.context import DoorContext
from web.runtime.model_pools import FoundRoute, Model

#: The purpose of a model → its description in errors.
_PURPOSES = {
    "embed": "makes embeddings: use /v1/embeddings",
    "generate": "generates text and makes no embeddings or scores",
    "rank": "ranks documents: use /v1/rerank",
}


def make_job(context: DoorContext, caller: Caller, generation: GenerationRequest, target: Model | FoundRoute) -> NewJob:
    """Return the job for a request to a model or a route. Raises ApiError if no pool can run the request."""
    if isinstance(target, Model):
        # In a route, a prompt that seems too long for one pool must not seem cheap there.
        size = replace(size_in_pool(context, generation, target), prompt_tokens=target.computed(generation.payload))
        return _job(context, caller, generation, target, size)
    sizes, problems = [], []
    for model in target.models:
        try:
            _check_upstream(generation, model)
            sizes.append(size_in_pool(context, generation, model))
        except ApiError as problem:
            problems.append(problem)
            cannot = RouteReason.SIZE if problem.code == "context_length_exceeded" else RouteReason.FEATURES
            sizes.append(RoutedRequest(model.name, model.estimate(generation.payload), 1, 0, cannot.value))
    if len(problems) == len(sizes):
        raise problems[0]
    possible, size = next(each for each in zip(target.models, sizes, strict=True) if not each[1].cannot)
    features = used_features(generation.payload)
    routing = Routing(target.name, target.text, tuple(sizes), features, escalates=bool(generation.escalate))
    return _job(context, caller, generation, possible, size, routing)


def used_features(payload: dict[str, Any]) -> tuple[str, ...]:
    """Return the used features that not every pool supports: values of `shared.jobs.route.FEATURES`."""
    forward = payload.get("forward") or {}
    response_format = payload.get("response_format") or forward.get("response_format")
    has_schema = isinstance(response_format, dict) and response_format.get("type") != "text"
    has_schema = has_schema or any(forward.get(name) is not None for name in STRUCTURED)
    used = {
        "tools": bool(payload.get("tools") or forward.get("tools") or forward.get("functions")),
        "images": attachments(payload) > 0,
        "schema": has_schema,
    }
    return tuple(name for name, is_used in used.items() if is_used)


def size_in_pool(context: DoorContext, generation: GenerationRequest, model: Model) -> RoutedRequest:
    """Return the request's size in the pool of a model. Raises ApiError if the pool's engine cannot run it."""
    _check_model_kind(generation, model)
    _check_min_tokens(generation)
    _check_tools(generation, model)
    _check_answers(generation, model)
    payload = generation.payload
    # An upstream has a default of its own; only its answer must end somewhere.
    default = context.settings.upstream_max_tokens if model.forwards else generation.default_max_tokens
    max_tokens = candidates_in(payload) * _max_tokens(generation, model, default)
    return RoutedRequest(
        model.name,
        model.estimate(payload),
        max_tokens,
        cost.answer_bytes(payload, max_tokens),
        fewer_tokens=model.estimate(generation.fewer.payload) if generation.fewer else 0,
    )


def _job(
    context: DoorContext,
    caller: Caller,
    generation: GenerationRequest,
    model: Model,
    size: RoutedRequest,
    routing: Routing | None = None,
) -> NewJob:
    """Return the job for the pool of a model, or for a route whose first possible pool that is."""
    name = model.name if routing is None else routing.name
    grace_ms = context.settings.poll_grace_ms if generation.poll_grace_ms is None else generation.poll_grace_ms
    ticket_id, ticket_ms = context.return_tickets.read(generation.return_ticket, caller.tenant, name)
    more = _more_in_payload(generation, model, routing)
    payload, fewer, prefix = generation.payload | more, None, prefix_digests(caller.tenant, generation.payload)
    if generation.fewer is not None:
        less = generation.fewer.payload
        opted_in = caller.policy is not None and caller.policy.degrade and generation.degrade
        fewer = FewerPassages(less | more, size.fewer_tokens, generation.fewer.form, opted_in)
        payload = add_fewer(payload, less, generation.fewer.passages)
        prefix = _common_digests(prefix, prefix_digests(caller.tenant, less))
    return NewJob(
        id=context.job_id(generation.job_id),
        tenant=caller.tenant,
        model=name,
        payload=payload,
        prompt_tokens=size.prompt_tokens,
        max_tokens=size.max_tokens,
        deadline_ms=generation.deadline.deadline_ms,
        deadline_source=generation.deadline.source,
        start_within_ms=generation.deadline.start_within_ms,
        start_named=generation.deadline.start_within_ms is not None and generation.deadline.start_source == "body",
        longest_deadline_ms=generation.deadline.longest_ms,
        # The grace is at least three times the longest poll interval, so that a client that obeys `poll_after_ms` never
        # loses its job.
        poll_grace_ms=max(grace_ms, 3 * LONGEST_POLL_MS) if grace_ms else None,
        ticket_id=ticket_id,
        ticket_ms=ticket_ms,
        key_label=caller.key_label,
        key_id=caller.key_id,
        key_bounds=caller.key_bounds,
        supersede_digest=(None if generation.supersede_key is None else digest("supersede", generation.supersede_key)),
        degrade=_may_be_cut(caller, generation),
        private=generation.private or (caller.policy is not None and caller.policy.private),
        routing=routing,
        fewer=fewer,
        prefix=prefix,
        offer=secrets.token_hex(8),
        request=with_kept_request(caller, generation),
    )


def _more_in_payload(generation: GenerationRequest, model: Model, routing: Routing | None) -> dict[str, Any]:
    """Return the fields of the payload that do not come from the body's prompt and its sampling fields."""
    more: dict[str, Any] = {"metadata": generation.metadata} if generation.metadata else {}
    if model.forwards and generation.request_id:
        more |= {"request_id": generation.request_id}
    if generation.max_tokens is not None:
        # A job fails in the engine if the max_tokens in its payload does not fit the context. The default is therefore
        # not written into the payload: without max_tokens, the engine shortens the answer to fit.
        more |= {"max_tokens": generation.max_tokens} | ({"shortens": True} if generation.shortens else {})
    if routing is not None and generation.escalate:
        more |= {"escalate": list(generation.escalate)}
    return more


def _common_digests(prefix: str, other: str) -> str:
    """Return the digests of the beginnings that two prompts have in common."""
    common = takewhile(lambda pair: pair[0] == pair[1], zip(prefix.split(), other.split(), strict=False))
    return " ".join(digest for digest, _ in common)


def _may_be_cut(caller: Caller, generation: GenerationRequest) -> bool:
    """Return whether the job's answer may be shortened under overload.

    The tenant's policy and the request must both allow degradation. A request with a response_format or with tools is
    never degraded, because a shortened answer would not conform to that format, or would be half a call. A request for
    several candidates is not degraded either: its complete candidates must not be longer than those that another
    attempt generates.
    """
    return (
        caller.policy is not None
        and caller.policy.degrade
        and generation.degrade
        and not {"response_format", "tools", "n"} & generation.payload.keys()
    )


def _check_upstream(generation: GenerationRequest, model: Model) -> None:
    """Raise ApiError if a request in a route is one that only an upstream, or only our own engine, can answer."""
    payload = generation.payload
    if model.live and "forward" in payload and not model.forwards:
        raise ApiError("unsupported_parameter", f"model {model.name!r} is not served by an upstream", param="model")
    if model.forwards and "forward" not in payload and payload.get("logprobs") is not None:
        raise ApiError("unsupported_parameter", f"model {model.name!r} returns no logprobs", param="logprobs")


def _check_model_kind(generation: GenerationRequest, model: Model) -> None:
    """Raise ApiError if the request asks a model for what it does not do: text, embeddings, or scores of documents.

    A model without a live worker, and one that an upstream serves, pass the check, because their kinds are unknown. No
    upstream is asked for scores.
    """
    payload = generation.payload
    wanted = "rank" if "query" in payload else "embed" if "input" in payload else "generate"
    if model.live and model.forwards and wanted == "rank":
        message = f"model {model.name!r} is served by an upstream, which is not asked to rank documents"
        raise ApiError("unsupported_parameter", message, param="model")
    if not model.live or model.forwards or wanted == model.purpose:
        return
    raise ApiError("unsupported_parameter", f"model {model.name!r} {_PURPOSES[model.purpose]}", param="model")


def _check_min_tokens(generation: GenerationRequest) -> None:
    """Raise ApiError if the answer would have to be longer than it may be."""
    least = generation.payload.get("min_tokens")
    if least is not None and generation.max_tokens is not None and least > generation.max_tokens:
        raise invalid_field("min_tokens", f"min_tokens={least} is more than max_tokens={generation.max_tokens}")


def _check_tools(generation: GenerationRequest, model: Model) -> None:
    """Raise ApiError if the model's engine cannot call tools. A model without a live worker passes the check."""
    if "tools" in generation.payload and model.live and not model.calls_tools and not model.forwards:
        message = f"model {model.name!r} cannot call tools: its engine or its chat template knows none"
        raise ApiError("unsupported_parameter", message, param="tools")


def _check_answers(generation: GenerationRequest, model: Model) -> None:
    """Raise ApiError if an upstream would have to give several answers and cannot, or to choose the likeliest ones.

    The worker decides the former: one of an earlier version asks the upstream for one answer to one text.
    """
    payload, form, candidates = generation.payload, generation.form, candidates_in(generation.payload)
    n = candidates // max(1, len(payload.get("prompts", ())))
    if model.live and model.gives_one_answer and n > 1:
        message = f"n={n} is not supported: a worker of model {model.name!r} is of an earlier version"
        raise ApiError("unsupported_parameter", message, param="n")
    if model.live and model.gives_one_answer and "prompts" in payload:
        message = f"a worker of model {model.name!r} is of an earlier version, so prompt must be one text"
        raise ApiError("unsupported_parameter", message, param="prompt")
    if model.live and model.forwards and form.get("choices", 1) < candidates and form.get("pick") != "all":
        message = (
            f"n={n}: model {model.name!r} is served by an upstream, which gives no log probabilities to "
            f"choose the likeliest answer with; with pick=all, all are returned"
        )
        raise ApiError("unsupported_parameter", message, param="n")


def _max_tokens(generation: GenerationRequest, model: Model, default: int) -> int:
    """Return how many tokens an answer may have, without a length in the request at most `default`.

    The door does not know the exact length of the prompt, which only the worker can count. This function therefore
    raises ApiError only if the request does not fit the context with any tokenizer.
    """
    payloads: list[Mapping[str, Any]] = [generation.payload]
    if model.forwards and generation.payload.get("prompts"):
        # Our engine has all prompts of a job in one context, and an upstream each in its own.
        payloads = [{**generation.payload, "prompts": [one]} for one in generation.payload["prompts"]]
    min_prompt_tokens = max(cost.lower_bound(payload, words=model.counts_words) for payload in payloads)
    wanted = generation.max_tokens
    requested = 1 if wanted is None or generation.shortens else wanted
    if model.n_ctx is not None and min_prompt_tokens + requested > model.n_ctx:
        raise ApiError(
            "context_length_exceeded",
            # LiteLLM and others recognize this error by the beginning of its message.
            f"This model's maximum context length is {model.n_ctx} tokens, and the request to {model.name!r} has at "
            f"least {min_prompt_tokens} prompt tokens and max_tokens={requested}",
            param=_oversized_field(generation, min_prompt_tokens, model.n_ctx),
        )
    most = default if wanted is None else wanted
    if model.n_ctx is None or (wanted is not None and not generation.shortens):
        return most
    # Our engine counts the prompt and shortens the answer to fit. An upstream gets a length that should fit.
    least = max(map(model.estimate, payloads)) if model.forwards else min_prompt_tokens
    return max(1, min(most, model.n_ctx - least))


def _oversized_field(generation: GenerationRequest, min_prompt_tokens: int, n_ctx: int) -> str:
    if "input" not in generation.payload and min_prompt_tokens < n_ctx:
        return "max_tokens"
    if "query" in generation.payload:
        return "documents"
    return next((name for name in ("messages", "input") if name in generation.payload), "prompt")

"""The stored form of an answer, and the job view that a later request gets of it. Pure functions."""

import json
from dataclasses import dataclass, field
from typing import Any

from shared.jobs.job import JobView, Usage, new_job_id
from shared.jobs.states import JobState
from web.api.candidates import n_candidates
from web.api.citations import FIELD as RETRIEVAL
from web.api.citations import Retrieved
from web.api.job_json import CACHED
from web.jobs.generation import GenerationRequest

#: Fields of a result that a cached answer has too: the parts of an upstream's answer, and the sequence that ended it.
_PARTS = ("upstream", "stop_sequence")
#: How many digits of a similarity clients get.
_DIGITS = 3


@dataclass(frozen=True)
class KeptAnswer:
    """The answer to a prompt."""

    prompt: str
    model: str
    text: str
    finish_reason: str
    extra: dict[str, Any] = field(default_factory=dict)
    #: The citations of the answer, as the form of its job has them; None without retrieval.
    retrieval: dict[str, Any] | None = None

    def dump(self) -> str:
        """Return the answer as the text that is stored."""
        return json.dumps(vars(self), ensure_ascii=False, separators=(",", ":"))


def load(text: str) -> KeptAnswer | None:
    """Return what `dump` has written; None if another program has spoiled it."""
    try:
        value = json.loads(text)
        extra, retrieval = value["extra"], value["retrieval"]
        if not isinstance(extra, dict) or not isinstance(retrieval, dict | None):
            return None
        prompt, model, answer, reason = (str(value[name]) for name in ("prompt", "model", "text", "finish_reason"))
        return KeptAnswer(prompt, model, answer, reason, extra, retrieval)
    except (ValueError, TypeError, KeyError):
        return None


def answer_of(prompt: str, view: JobView, generation: GenerationRequest) -> KeptAnswer | None:
    """Return what to store of a job; None if its answer is not the whole one to its prompt.

    An answer that has reached the length that its client named is whole. One that was cut for another reason, was made
    with fewer passages than were found, or calls tools is not.
    """
    tokens, most = view.usage.completion_tokens if view.usage else 0, generation.max_tokens
    # With fewer tokens, its end is that of the model's context.
    is_at_length = view.finish_reason == "length" and most is not None and tokens >= most
    is_whole = view.finish_reason == "stop" or is_at_length
    found = Retrieved.read(view)
    is_cut = bool(view.degraded or view.fewer or (found and found.changes))
    has_passages = found is not None or generation.retrieval is None
    if view.state is not JobState.SUCCEEDED or not view.text or not is_whole or is_cut or not has_passages:
        return None
    extra = {name: view.extra[name] for name in _PARTS if name in view.extra}
    if n_candidates(view) > 1 or (extra.get("upstream") or {}).get("tool_calls"):
        return None
    return KeptAnswer(prompt, view.model, view.text, view.finish_reason, extra, view.form.get(RETRIEVAL))


def view_of(kept: KeptAnswer, tenant: str, generation: GenerationRequest, facts: "Facts") -> JobView:
    """Return the view of a job that no store has. Its token counts are 0, because nothing was computed."""
    form = generation.form | {CACHED: {"similarity": round(facts.similarity, _DIGITS), "age_s": facts.age_s}}
    if kept.retrieval is not None:
        form |= {RETRIEVAL: kept.retrieval}
    return JobView(
        id=new_job_id(),
        tenant=tenant,
        model=kept.model,
        state=JobState.SUCCEEDED,
        admitted_ms=facts.now_ms,
        deadline_at_ms=facts.now_ms + generation.deadline.deadline_ms,
        started_ms=None,
        ended_ms=facts.now_ms,
        deadline_ms=generation.deadline.deadline_ms,
        deadline_source=generation.deadline.source,
        attempts=0,
        cancel_requested=False,
        prompt_tokens=0,
        max_tokens=generation.max_tokens or generation.default_max_tokens,
        finish_reason=kept.finish_reason,
        code="",
        stage="",
        worker="",
        text=kept.text,
        usage=Usage(),
        message="",
        position=None,
        now_ms=facts.now_ms,
        form=form,
        extra=kept.extra,
    )


@dataclass(frozen=True)
class Facts:
    """How an answer was found: the cosine of the prompts, how old the answer is, and the time in ms since the epoch."""

    similarity: float
    age_s: int
    now_ms: int

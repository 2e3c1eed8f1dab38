"""The candidates of a job, as one view of the job for each, and their logprobs; pure functions."""

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated, Any, Literal

from pydantic import Field

from shared.candidates import MAX_CANDIDATES, read_candidates
from shared.jobs.job import JobView
from shared.jobs.packed_logprobs import unpack

# The engine (workers/engine/llama/logprobs.py) writes `[token, logprob, [[token, logprob], …]]` for each token of the
# answer. A token is its text, or the list of its bytes if these alone are not valid UTF-8. The store has a packed form.


def chat_logprobs(view: JobView) -> dict[str, Any] | None:
    """Return `choices[].logprobs` of a chat, or None if the request did not ask for logprobs."""
    stored = _stored(view)
    if stored is None:
        return None
    content = [_entry(token, logprob) | {"top_logprobs": _entries(top)} for token, logprob, top in stored]
    return {"content": content, "refusal": None}


def completion_logprobs(view: JobView) -> dict[str, Any] | None:
    """Return `choices[].logprobs` of a completion: lists with one item per token; None if they were not requested."""
    stored = _stored(view)
    if stored is None:
        return None
    texts = [_text(token) for token, _, _ in stored]
    offsets = list(accumulate(map(len, texts), initial=0))[:-1]
    return {
        "tokens": texts,
        "token_logprobs": [logprob for _, logprob, _ in stored],
        "top_logprobs": [{_text(token): logprob for token, logprob in top} or None for _, _, top in stored],
        "text_offset": offsets,
    }


def job_logprobs(view: JobView) -> list[dict[str, Any]] | None:
    """Return the field `logprobs` of a job, in the format of `content` in a chat's logprobs; None if not requested."""
    logprobs = chat_logprobs(view)
    return None if logprobs is None else logprobs["content"]


def _stored(view: JobView) -> list[Any] | None:
    return unpack(view.extra.get("logprobs"))


def _entries(top: list[Any]) -> list[dict[str, Any]]:
    return [_entry(token, logprob) for token, logprob in top]


def _entry(token: str | list[int], logprob: float) -> dict[str, Any]:
    raw = token.encode() if isinstance(token, str) else bytes(token)
    return {"token": _text(token), "logprob": logprob, "bytes": list(raw)}


def _text(token: str | list[int]) -> str:
    """Return a token as text; bytes that are not valid UTF-8 become replacement characters."""
    return token if isinstance(token, str) else bytes(token).decode("utf-8", "replace")


CandidateCount = Annotated[int, Field(ge=1, le=MAX_CANDIDATES)]
Pick = Literal["mean_logprob", "all"]


@dataclass(frozen=True)
class Choice:
    """One answer of a job. `view` is the job as it would be with this answer alone."""

    index: int
    view: JobView
    #: The mean log probability of the answer's tokens; None if it is not known.
    mean_logprob: float | None = None


def candidate_form(candidates: int, *, choices: int = 1, pick: Pick = "mean_logprob") -> dict[str, Any]:
    """Return the data to store with a job to read its candidates later (JobView.form); nothing for only one.

    `choices` of the candidates are returned on OpenAI's routes, and those that `pick` names on the native ones.
    """
    return {"candidates": candidates, "choices": choices, "pick": pick} if candidates > 1 else {}


def n_candidates(view: JobView) -> int:
    """Return how many candidates the job has."""
    n = view.form.get("candidates")
    return n if isinstance(n, int) and 1 < n <= MAX_CANDIDATES else 1


def candidates_of(view: JobView) -> list[Choice]:
    """Return all answers of the job, in order. One that the job did not get to is empty."""
    n, stored = n_candidates(view), view.extra.get("candidates")
    if n == 1:
        return [Choice(0, view)]
    form = {name: value for name, value in view.form.items() if name != "candidates"}
    fields = [each if isinstance(each, dict) else {} for each in stored] if isinstance(stored, list) else []
    fields += [{}] * (n - len(fields))
    choices = []
    for candidate, own in zip(read_candidates(view.text or "", n), fields, strict=False):
        mean, reason = own.get("mean_logprob"), candidate.reason or view.finish_reason
        text = None if view.text is None else candidate.text
        extra = {name: own[name] for name in ("logprobs", "upstream") if name in own}
        alone = replace(view, text=text, finish_reason=reason, form=form, extra=extra)
        choices.append(Choice(candidate.index, alone, mean if isinstance(mean, int | float) else None))
    return choices


def likeliest_first(choices: list[Choice]) -> list[Choice]:
    """Return the answers by the mean log probability of their tokens, then by index.

    Answers for which it is unknown come last: those without tokens, and those of an engine without a model.
    """
    return sorted(choices, key=lambda each: (each.mean_logprob is None, -(each.mean_logprob or 0.0), each.index))


def choices_of(view: JobView) -> list[Choice]:
    """Return the answers that OpenAI's routes return: all in order, or the likeliest ones if they are fewer."""
    candidates, n = candidates_of(view), view.form.get("choices")
    if not isinstance(n, int) or n >= len(candidates):
        return candidates
    return [replace(each, index=place) for place, each in enumerate(likeliest_first(candidates)[:n])]


def best_view(view: JobView) -> JobView:
    """Return the job as it would be with its likeliest answer alone."""
    return view if n_candidates(view) == 1 else likeliest_first(candidates_of(view))[0].view


def candidates_json(view: JobView) -> dict[str, Any]:
    """Return a dict with the field `candidates`, if the native request asked for all answers and the job has ended."""
    if n_candidates(view) == 1 or view.form.get("pick") != "all" or view.text is None:
        return {}
    return {
        "candidates": [
            {
                "index": each.index,
                "text": each.view.text,
                "finish_reason": each.view.finish_reason or None,
                "mean_logprob": each.mean_logprob,
                "logprobs": job_logprobs(each.view),
            }
            for each in candidates_of(view)
        ]
    }

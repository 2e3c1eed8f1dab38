"""The candidates of a job: the job that each of them is, and their mean log probabilities; pure functions."""

from dataclasses import replace
from typing import Any

from workers.engine.answer.words import LEAST_MEAN
from workers.engine.backend import Prepared


def prompt_number(job: Prepared, index: int) -> int:
    """Return the number, from 0, of the prompt to which the candidate with this index is an answer."""
    return index * max(1, len(job.prompts)) // job.candidates


def job_of_candidate(job: Prepared, index: int) -> Prepared:
    """Return the job whose answer is the candidate with this index.

    Its seed is the job's seed plus the number of candidates before it that answer the same prompt. A job without a seed
    has a random one for each candidate.
    """
    seed, offset = job.sampling.seed, index % (job.candidates // max(1, len(job.prompts)))
    if seed is not None and offset:
        job = replace(job, sampling=replace(job.sampling, seed=seed + offset))
    if not job.prompts:
        return job
    prompt, tokens = job.prompts[prompt_number(job, index)]
    return replace(job, prompt=prompt, prompt_tokens=tokens, prompts=())


def mean_logprob(extra: dict[str, Any]) -> float | None:
    """Return the mean log probability of the tokens in an answer's field `logprobs`; None without tokens."""
    entries = extra.get("logprobs")
    return max(LEAST_MEAN, round(sum(entry[1] for entry in entries) / len(entries), 6)) if entries else None

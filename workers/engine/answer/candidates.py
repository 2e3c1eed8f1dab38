"""The candidates of a job: the job that each of them is, and their mean log probabilities; pure functions."""

from dataclasses import replace
from typing import Any

from workers.engine.answer.words import LEAST_MEAN
from workers.engine.backend import Prepared


def job_of_candidate(job: Prepared, index: int) -> Prepared:
    """Return the job whose answer is the candidate with this index. Its seed is the job's seed plus the index.

    A job without a seed has a random one for each candidate.
    """
    seed = job.sampling.seed
    return job if seed is None or index == 0 else replace(job, sampling=replace(job.sampling, seed=seed + index))


def mean_logprob(extra: dict[str, Any]) -> float | None:
    """Return the mean log probability of the tokens in an answer's field `logprobs`; None if there are none."""
    entries = extra.get("logprobs")
    return max(LEAST_MEAN, round(sum(entry[1] for entry in entries) / len(entries), 6)) if entries else None

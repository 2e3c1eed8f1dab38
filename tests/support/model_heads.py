"""The heads of queues in the reference model: which job a claim considers, and which cannot end in time any more."""

from typing import TYPE_CHECKING

from tests.support.model_lengths import MIN_ANSWERS, Lengths
from tests.support.model_records import ModelJob
from tests.support.model_tiers import SHORTEST_ANSWER, tier_at_claim

if TYPE_CHECKING:
    from tests.support.model import Model


def is_hopeless(model: "Model", job: ModelJob) -> bool:
    """Return whether even a short answer can no longer be ready in time and another job wants the slot."""
    rates = model.pools[job.slug].rates_at(model.now_ms)
    if not model.full or rates is None:
        return False
    left_ms = job.deadline_ms - model.now_ms
    prompt_ms = 1_000 * job.prompt_tokens / rates.prefill_tps
    mine = model.lengths.get(job.tenant, Lengths())
    if prompt_ms + job.max_tokens * rates.tpot_ms <= left_ms or mine.n < MIN_ANSWERS:
        return False
    shortest = min(job.max_tokens, mine.quantile("p20"))
    if tier_at_claim(model, job):
        shortest = min(shortest, SHORTEST_ANSWER)
    if prompt_ms + shortest * rates.tpot_ms <= left_ms:
        return False
    others = [other for other in model.inflight() if other is not job and other.slug == job.slug]
    return any(
        other.state == "queued" or (other.paused_since_ms > 0 and other.tenant != job.tenant) for other in others
    )


def candidate(model: "Model", tenant: str, slug: str, suspect_held: bool) -> tuple[ModelJob, bool]:
    """Return the head of the queue or, if the worker must not run it now, the first job that it may run.

    The second value says whether a claim would be the job's last attempt.
    """

    def is_suspect(job: ModelJob) -> bool:
        return model.max_attempts > 1 and job.counted_attempts >= model.max_attempts - 1

    job, *others = model.waiting(tenant, slug)
    if suspect_held and is_suspect(job) and job.expires_ms > model.now_ms and not is_hopeless(model, job):
        alike = [other for other in others if (other.priority < 0) == (job.priority < 0)]
        job = next((other for other in alike if not is_suspect(other)), job)
    return job, is_suspect(job)

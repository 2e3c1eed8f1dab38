"""Starts claimed jobs: prepares each job, on another thread if that takes long, and submits it to the engine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shared import failpoints
from shared.jobs.job import ClaimedJob
from shared.jobs.outcomes import EndCode
from shared.jobs.request_texts import request_texts
from shared.log import get_logger
from workers.duties.claimed_jobs import ClaimedJobs, HeldJob
from workers.duties.claims.handover import SlotHandover
from workers.duties.claims.preparation import Preparation, PreparationResult, prepare
from workers.engine.events import JobRejected, JobSpec
from workers.job_engine import JobEngine

log = get_logger()

#: A prompt of at most this many texts and characters is prepared without another thread, which takes a ms or two.
_QUICK_TEXTS, _QUICK_CHARS = 32, 8192


@dataclass(eq=False)
class JobStarter:
    """Starts the jobs of one worker. Only the thread of the claimer's passes uses it."""

    claimed_jobs: ClaimedJobs
    engine: JobEngine
    handover: SlotHandover
    preparation: Preparation
    #: See `Claimer` for these two.
    fail: Callable[[HeldJob, EndCode, str, str], None]
    record_prompt: Callable[[Mapping[str, Any], int], None]

    @property
    def cells(self) -> int:
        """The KV cells that the jobs in preparation need, as the door has estimated them."""
        return self.preparation.cells

    def start(self, claimed: Sequence[ClaimedJob], sent_s: float) -> None:
        """Start the jobs of an answer to a claim that was sent at the clock time `sent_s`."""
        for job in claimed:
            failpoints.reach("after_claim", job.id)
        added, replaced = self.claimed_jobs.add(claimed, sent_s)
        for claim in replaced:
            log.info("job.lost", job=claim.id, told_by="claim")
            self.engine.cancel(claim, drop=True)
        for held_job in added:
            self._prepare(held_job)

    def _prepare(self, held_job: HeldJob) -> None:
        """Prepare a job and submit it to the engine: at once if that is quick, else when another thread is done."""
        try:
            spec = _spec(held_job)
        except JobRejected as rejected:
            self.fail(held_job, EndCode(rejected.code), rejected.message, rejected.param)
            return
        if _is_quick(spec.payload):
            # Every job costs this much. Only longer times are measured and charged.
            self._finish(replace(prepare(self.engine.prepare, held_job, spec), cpu_s=0.0))
        else:
            self.preparation.add(held_job, spec)

    def submit_prepared(self) -> None:
        for outcome in self.preparation.finished():
            # The job may have been lost or released in the meantime.
            if self.claimed_jobs.get(outcome.held_job.claim) is not None:
                self._finish(outcome)

    def _finish(self, outcome: PreparationResult) -> None:
        """Submit a job to the engine, which reports the job's end later. A job that the engine rejects fails here."""
        held_job, prepared = outcome.held_job, outcome.prepared
        held_job.prepare_cpu_s += outcome.cpu_s
        if isinstance(prepared, JobRejected):
            if prepared.code == EndCode.CONTEXT_LENGTH_EXCEEDED and held_job.take_fewer_passages():
                log.info("job.fewer_passages", job=held_job.claimed.id, passages=held_job.passages)
                self._prepare(held_job)
                return
            self.fail(held_job, EndCode(prepared.code), prepared.message, prepared.param)
            return
        if isinstance(prepared, Exception):  # a bug that affects one job must not end the others
            log.error("job.prepare_fault", job=held_job.claimed.id, exc_info=prepared)
            self.fail(held_job, EndCode.ENGINE_ERROR, "the engine could not prepare this job", "")
            return
        self.handover.submit(held_job, prepared)
        if self.claimed_jobs.get(held_job.claim) is None:
            # The job was lost just now, and the engine may have ignored the other thread's call, as below.
            self.engine.cancel(held_job.claim, drop=True)
        if held_job.cancel_requested:
            # Repeat the cancel, because the engine ignored the other thread's call if it came before `submit`. That
            # thread sets `cancel_requested` before it calls the engine, so its call or this one comes after `submit`.
            self.engine.cancel(held_job.claim)
        failpoints.reach("after_submit", held_job.claimed.id)
        if not prepared.is_counted:
            return
        try:
            self.record_prompt(prepared.spec.payload, prepared.prompt_tokens)
        except Exception:  # only statistics: the job runs regardless
            log.exception("job.learn_fault", job=held_job.claimed.id)


def _is_quick(payload: Mapping[str, Any]) -> bool:
    """Return whether a job can be prepared without delaying others: a short prompt, and nothing to compile."""
    if payload.get("response_format") is not None or payload.get("tools"):
        return False
    try:
        texts = request_texts(payload)
    except (AttributeError, TypeError):
        # Another program has changed the payload. The engine rejects it.
        return True
    return len(texts) <= _QUICK_TEXTS and sum(map(len, texts)) <= _QUICK_CHARS


def _spec(held_job: HeldJob) -> JobSpec:
    """Convert the job to the engine's input. Raises JobRejected if the stored payload is not a valid request."""
    job = held_job.claimed
    # Check the types at run time, because other programs may have changed the payload in the store.
    valid = isinstance(job.payload, dict) and (
        isinstance(job.payload.get("prompt"), str)
        or any(isinstance(job.payload.get(name), list) for name in ("messages", "input", "prompts"))
    )
    if not valid or job.max_tokens < 1:
        raise JobRejected(EndCode.CORRUPT, "the job's record in the store is not a valid request")
    return JobSpec(
        key=held_job.claim,
        tenant=job.tenant,
        payload=job.payload,
        max_tokens=job.max_tokens,
        # Both times count from just before the claim was sent, so they may be early by the call's duration, never late.
        deadline_s=held_job.claimed_s + job.deadline_in_ms / 1000,
        start_by_s=None if job.start_in_ms is None else held_job.claimed_s + job.start_in_ms / 1000,
        attempt=job.attempt,
        traceparent=job.traceparent,
        answer=job.answer,
    )

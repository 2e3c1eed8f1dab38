"""Writes the spans of a worker's attempts: how long a job was queued, its prefill, its decode and its delivery."""

import time
from collections.abc import Callable

from shared.clock import Clock
from shared.jobs.job import Usage
from shared.tracing.names import Attribute, SpanName
from shared.tracing.spans import Traces
from workers.duties.claimed_jobs import HeldJob

#: No job is queued for longer, because no deadline is longer than a day. The time of a spoiled record may be.
_LONGEST_QUEUE_MS = 86_400_000


class JobSpans:
    """Writes spans when their times are known, so that a running job holds no span."""

    def __init__(self, traces: Traces, worker: str, clock: Clock, now_ns: Callable[[], int] = time.time_ns) -> None:
        """`now_ns` returns the time in ns since the epoch."""
        self._traces, self._worker, self._clock, self._now_ns = traces, worker, clock, now_ns

    def claimed(self, held_job: HeldJob) -> None:
        if not self._traces.is_on:
            return
        job, claimed_ns = held_job.claimed, self._at(held_job.claimed_s)
        begun_ns = claimed_ns - min(job.waited_ms, _LONGEST_QUEUE_MS) * 1_000_000
        self._traces.record(SpanName.QUEUE, job.traceparent, (begun_ns, claimed_ns), self._attributes(held_job))

    def ended(self, held_job: HeldJob, usage: Usage, outcome: str, code: str = "") -> None:
        """Write the attempt, which has ended now: its outcome is confirmed by the store, or the job was given back.

        `code` is an error code if the job did not succeed.
        """
        if not self._traces.is_on:
            return
        now_s, claimed_s = self._clock.monotonic(), held_job.claimed_s
        stopped_s = now_s if held_job.ended_s is None else held_job.ended_s
        decoding_s = max(claimed_s, stopped_s - (usage.decode_ms or 0) / 1000)
        reading_s = max(claimed_s, decoding_s - (usage.prefill_ms or 0) / 1000)
        attributes: dict[Attribute, str | int | None] = self._attributes(held_job) | {
            Attribute.OUTCOME: outcome,
            Attribute.ERROR: code or None,
            Attribute.PROMPT_TOKENS: usage.read_tokens,
            Attribute.CACHED_TOKENS: usage.cached_tokens,
            Attribute.COMPLETION_TOKENS: usage.completion_tokens,
        }
        record, between = self._traces.record, self._between
        attempt = record(SpanName.ATTEMPT, held_job.claimed.traceparent, between(claimed_s, now_s), attributes)
        if usage.prefill_ms is not None:
            record(SpanName.PREFILL, attempt, between(reading_s, decoding_s))
        if usage.decode_ms is not None:
            record(SpanName.DECODE, attempt, between(decoding_s, stopped_s))
        record(SpanName.DELIVERY, attempt, between(stopped_s, now_s))

    def _attributes(self, held_job: HeldJob) -> dict[Attribute, str | int | None]:
        job = held_job.claimed
        return {
            Attribute.JOB: job.id,
            Attribute.TENANT: job.tenant,
            Attribute.MODEL: job.model,
            Attribute.ATTEMPT: job.attempt,
            Attribute.WORKER: self._worker,
        }

    def _between(self, begun_s: float, ended_s: float) -> tuple[int, int]:
        return self._at(begun_s), self._at(ended_s)

    def _at(self, clock_s: float) -> int:
        return self._now_ns() - round((self._clock.monotonic() - clock_s) * 1e9)

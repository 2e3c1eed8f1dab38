"""One job inside the upstream engine: its answer so far, its times, and its token counts."""

import asyncio
from dataclasses import dataclass, field

from shared.jobs.job import ClaimRef, Usage
from workers.engine.backend import Prepared
from workers.upstream.answer import Answer
from workers.upstream.request import UpstreamRequest
from workers.upstream.vectors import Vectors


@dataclass(eq=False)
class Run:
    """A job that was submitted. Only the event loop's thread uses it."""

    job: Prepared
    request: UpstreamRequest
    answer: Answer | Vectors
    started_s: float
    task: asyncio.Task[None] | None = None
    #: Ends the exchange when its time is over.
    limit: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))
    #: When the newest part of the answer arrived, at first when the exchange began; and what will check the time since.
    last_part_s: float = 0.0
    watch: asyncio.TimerHandle | None = None
    first_token_s: float | None = None
    #: When the first chunk with a role arrived, if that was before the first token: servers send it when they have read
    #: the prompt, and may then hold back what could be a call of a tool.
    prompt_read_s: float | None = None
    #: How the job is to end because its exchange was canceled: an outcome, or "" if nobody has asked for its end.
    requested_end: str = ""
    #: The number of this job's completion tokens that the engine's counters include.
    counted: int = 0
    #: The claim and the tenant. Each part of the answer looks for them.
    key: ClaimRef = field(init=False)
    tenant: str = field(init=False)

    def __post_init__(self) -> None:
        self.key, self.tenant = self.job.spec.key, self.job.spec.tenant

    def stop_watching(self) -> None:
        if self.watch is not None:
            self.watch.cancel()
            self.watch = None

    @property
    def job_id(self) -> str:
        return self.key.id

    @property
    def places(self) -> int:
        """How many of the upstream's places the request takes: one for each answer."""
        return self.request.answers

    @property
    def streams(self) -> bool:
        """Whether the answer has a first token before its end. Embeddings arrive at once."""
        return self.request.kind != "embeddings"

    @property
    def stage(self) -> str:
        """The stage, as a value of `Stage`: `prefill` until the first part of the answer, then `decode`."""
        return "prefill" if self.first_token_s is None else "decode"

    @property
    def expires_at_s(self) -> float:
        """The deadline, or the start deadline if that is earlier and no part of the answer has arrived."""
        spec = self.job.spec
        if spec.start_by_s is None or self.first_token_s is not None:
            return spec.deadline_s
        return min(spec.deadline_s, spec.start_by_s)

    @property
    def is_read(self) -> bool:
        """Whether the upstream has read the prompt: it has sent a part of the answer, its end, or usage."""
        counts = self.answer.counts
        has_usage = counts.prompt is not None or counts.completion is not None
        has_part = self.first_token_s is not None or self.answer.has_begun
        return has_part or has_usage or bool(self.answer.finish_reason)

    def usage(self, now_s: float) -> Usage:
        """Return the token counts and the times. A prompt that the upstream has not read counts nowhere."""
        counts, first = self.answer.counts, self.first_token_s
        read = first if first is None or self.prompt_read_s is None else min(first, self.prompt_read_s)
        prompt = self.job.prompt_tokens if counts.prompt is None else counts.prompt
        return Usage(
            prompt_tokens=prompt,
            cached_tokens=counts.cached,
            completion_tokens=self.answer.completion_tokens,
            prefill_ms=None if read is None else _ms(read - self.started_s),
            decode_ms=None if read is None else _ms(now_s - read),
            ttft_ms=None if first is None else _ms(first - self.started_s),
            unread_tokens=0 if self.is_read else prompt,
        )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)

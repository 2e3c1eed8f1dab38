"""The engine that passes jobs to an OpenAI-compatible server; see `workers.job_engine` for what the duties use."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from shared.clock import Clock
from shared.jobs.outcomes import EndCode, FinishReason, Outcome
from workers.engine.backend import Facts, Prepared
from workers.engine.events import DROPPED, RETURNED, Ended, Event, FreeCapacity, JobSpec, Text
from workers.engine.sampling import Sampling
from workers.engine.stats import EngineStats
from workers.upstream.answer import Answer
from workers.upstream.availability import Availability
from workers.upstream.client import UpstreamClient
from workers.upstream.faults import Busy, CredentialsRefused, Lost, Rejected, Unreachable, UpstreamFault
from workers.upstream.prompt_sizes import PromptSizes
from workers.upstream.request import build_request
from workers.upstream.run import Run
from workers.upstream.unpausable import Unpausable

log = structlog.get_logger()

#: Interval at which an event loop without events shows that it works, in seconds.
_SWEEP_S = 0.1
#: A request whose connection the upstream closes before the first byte costs no attempt, but a request that makes the
#: upstream crash must not come back for ever. Of this many jobs the worker remembers how often that happened.
_REMEMBERED_JOBS, _MAX_RETURNS = 1024, 2


@dataclass(frozen=True)
class Limits:
    """How long an upstream may send nothing, and after how many attempts a job ends."""

    first_token_s: float
    gap_s: float
    max_attempts: int


@dataclass
class UpstreamStats(EngineStats):
    """The counters of an engine whose tokens another process computes."""

    #: The number of rounds of the event loop. An upstream may be silent for long, but the loop must go round.
    sweeps: int = 0

    @property
    def progress(self) -> int:
        """The number of rounds; the watchdog ends the process if the event loop hangs."""
        return self.sweeps


class UpstreamEngine(Unpausable):
    """Runs up to `facts.slots` jobs at once on the upstream."""

    shares_steps = False

    def __init__(
        self,
        client: UpstreamClient,
        facts: Facts,
        limits: Limits,
        emit: Callable[[Event], None],
        clock: Clock,
        *,
        on_room: Callable[[], None],
    ) -> None:
        """Create an engine. `on_room` is called when the upstream takes requests again."""
        self.facts, self.stats, self.sizes = facts, UpstreamStats(), PromptSizes()
        self._client, self._limits, self._emit, self._clock = client, limits, emit, clock
        self._availability = Availability(client.probe, on_room, clock)
        #: Protects the attributes below.
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Calls for the event loop that arrived before it ran.
        self._early: list[Callable[[], None]] = []
        #: Keys of the submitted jobs that have not ended.
        self._reserved: set[str] = set()
        # The attributes below are used by the event loop's thread only.
        self._runs: dict[str, Run] = {}
        self._awake = asyncio.Event()
        #: Job id → how often the upstream closed the job's connection before its first byte.
        self._returns: OrderedDict[str, int] = OrderedDict()

    def prepare(self, spec: JobSpec) -> Prepared:
        """Build the upstream's request and estimate the prompt's tokens. Raises JobRejected. For any thread."""
        request = build_request(spec, self.facts.model)
        tokens = self.sizes.estimate(spec.payload)
        return Prepared(spec, tokens, spec.max_tokens, Sampling(), prompt=request, is_counted=False)

    def submit(self, job: Prepared) -> None:
        """Pass a job to the engine, which emits exactly one Ended event for it. May be called from any thread."""
        with self._lock:
            if job.spec.key in self._reserved:
                raise ValueError(f"the engine already has a job with the key {job.spec.key!r}")
            self._reserved.add(job.spec.key)
        self._post(partial(self._start, job))

    def cancel(self, key: str, *, drop: bool = False) -> None:
        """Close the job's request, if it has not ended. May be called from any thread."""
        self._post(partial(self._cancel_now, key, DROPPED if drop else Outcome.CANCELED))

    def recall(self) -> None:
        """Do nothing: every job is sent to the upstream at once."""

    def free_capacity(self) -> FreeCapacity:
        """Return the free slots, which are 0 while the upstream takes no requests. May be called from any thread."""
        with self._lock:
            free = max(0, self.facts.slots - len(self._reserved))
        return FreeCapacity(
            free if self._availability.is_open else 0, self.facts.cells, live=self._availability.is_live
        )

    def figures(self) -> dict[str, str | int | float]:
        """Return what was learned about the sizes of prompts. May be called from any thread."""
        return {**self.sizes.figures()}

    def run(self, stop: threading.Event) -> None:
        """Run jobs until `stop` is set and `wake` was called. Then end the remaining jobs as dropped."""
        asyncio.run(self._serve(stop))

    def wake(self) -> None:
        """Make `run` check its stop event. May be called from any thread."""
        self._post(self._awake.set)

    def _post(self, call: Callable[[], None]) -> None:
        with self._lock:
            if self._loop is None:
                self._early.append(call)
            else:
                self._loop.call_soon_threadsafe(call)

    async def _serve(self, stop: threading.Event) -> None:
        async with self._client:
            self._availability.start()
            with self._lock:
                self._loop, early = asyncio.get_running_loop(), self._early
                self._early = []
            for call in early:
                call()
            while not stop.is_set():
                self.stats.sweeps += 1
                try:
                    async with asyncio.timeout(_SWEEP_S):
                        await self._awake.wait()
                except TimeoutError:
                    continue
                self._awake.clear()
            with self._lock:
                self._loop = None
            await self._availability.stop()
            await self._drop_all()

    async def _drop_all(self) -> None:
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        for key in list(self._runs):
            self._cancel_now(key, DROPPED)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, job: Prepared) -> None:
        run = Run(job, job.prompt, Answer(job.prompt.kind), self._clock.monotonic())
        self._runs[run.key] = run
        run.task = asyncio.create_task(self._exchange(run))
        # The callback also runs for a task that was canceled before it began.
        run.task.add_done_callback(partial(self._conclude, run))

    def _cancel_now(self, key: str, outcome: str) -> None:
        run = self._runs.get(key)
        if run is not None and run.task is not None:
            run.requested_end = run.requested_end if run.requested_end == DROPPED else outcome
            run.task.cancel()

    async def _exchange(self, run: Run) -> None:
        """Run the job's request. Raises TimeoutError if a deadline passes or the upstream is silent for too long."""
        async with run.limit:
            self._move_limit(run)
            await self._client.run(run.request, run.answer, partial(self._receive, run))

    def _move_limit(self, run: Run) -> None:
        silence_s = self._limits.first_token_s if run.first_token_s is None else self._limits.gap_s
        left_s = min(run.expires_at_s - self._clock.monotonic(), silence_s)
        run.limit.reschedule(asyncio.get_running_loop().time() + max(0.0, left_s))

    def _receive(self, run: Run, text: str | None) -> None:
        """Handle something that the upstream sent: see `UpstreamClient.run`."""
        if text is not None:
            if run.first_token_s is None:
                run.first_token_s = self._clock.monotonic()
            self._count(run, run.answer.completion_tokens)
            if text:
                self._emit(Text(run.key, text, run.answer.completion_tokens))
        self._move_limit(run)

    def _count(self, run: Run, completion_tokens: int) -> None:
        """Count the job's tokens so far. A count that an earlier estimate exceeds changes nothing."""
        self.stats.completion_tokens += max(0, completion_tokens - run.counted)
        run.counted = max(run.counted, completion_tokens)

    # How a job ends.

    def _conclude(self, run: Run, task: asyncio.Task[None]) -> None:
        """End the job according to how its exchange ended. No other method ends a job."""
        now_s = self._clock.monotonic()
        fault = None if task.cancelled() else task.exception()
        if task.cancelled():
            if run.requested_end == Outcome.CANCELED:
                self._end(run, Outcome.CANCELED, FinishReason.CANCELED, EndCode.CANCELED)
            else:
                self._end(run, DROPPED)
        elif fault is None:
            self._note_success(run)
            self._end(run, Outcome.SUCCEEDED, run.answer.finish_reason)
        elif isinstance(fault, TimeoutError) and now_s >= run.expires_at_s:
            message = f"the deadline passed in {run.stage}"
            self._end(run, Outcome.EXPIRED, FinishReason.DEADLINE, EndCode.DEADLINE_EXCEEDED, message)
        elif isinstance(fault, TimeoutError):
            silence_s = self._limits.first_token_s if run.first_token_s is None else self._limits.gap_s
            self._end_attempt(run, f"the upstream sent nothing for {silence_s:g} s")
        elif isinstance(fault, UpstreamFault):
            self._end_after_fault(run, fault)
        else:
            log.error("upstream.engine_fault", job=run.key.partition(":")[0], exc_info=fault)
            self._end(run, Outcome.FAILED, "", EndCode.ENGINE_ERROR, f"{type(fault).__name__} in the upstream engine")

    def _end_after_fault(self, run: Run, fault: UpstreamFault) -> None:
        message = str(fault)
        if isinstance(fault, Busy):
            self._availability.note_busy(fault.pause_s, message)
            self._end(run, RETURNED)
        elif isinstance(fault, Unreachable):
            self._availability.note_away(message)
            if fault.sent and self._count_return(run) > _MAX_RETURNS:
                self._end_attempt(run, message)
            else:
                self._end(run, RETURNED)
        elif isinstance(fault, Rejected):
            extra = {"param": fault.param} if fault.param else {}
            self._end(run, Outcome.FAILED, "", EndCode.UPSTREAM_REJECTED, message, extra)
        elif isinstance(fault, CredentialsRefused):
            log.error("upstream.credentials_refused", why=message)
            self._end(run, Outcome.FAILED, "", EndCode.ENGINE_ERROR, message)
        else:
            assert isinstance(fault, Lost)  # noqa: S101 - the last kind of fault
            self._end_attempt(run, message)

    def _count_return(self, run: Run) -> int:
        job_id = run.key.partition(":")[0]
        self._returns[job_id] = self._returns.pop(job_id, 0) + 1
        while len(self._returns) > _REMEMBERED_JOBS:
            self._returns.popitem(last=False)
        return self._returns[job_id]

    def _end_attempt(self, run: Run, message: str) -> None:
        """End a failed attempt. The job's lease expires and its next attempt begins; after the last, it fails."""
        attempt = run.job.spec.attempt
        log.warning("upstream.lost", job=run.key.partition(":")[0], attempt=attempt, why=message)
        if attempt < self._limits.max_attempts:
            self._end(run, DROPPED)
        else:
            self._end(run, Outcome.FAILED, "", EndCode.UPSTREAM_LOST, message)

    def _note_success(self, run: Run) -> None:
        self._returns.pop(run.key.partition(":")[0], None)
        if run.answer.counts and run.answer.counts[0]:
            self.sizes.observe(run.job.spec.payload, run.answer.counts[0])

    def _end(
        self,
        run: Run,
        outcome: str,
        reason: str = "",
        code: str = "",
        message: str = "",
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Free the job's slot, then emit its Ended event."""
        refused = outcome == Outcome.FAILED or (outcome == DROPPED and not run.requested_end)
        usage = run.usage(self._clock.monotonic(), refused=refused)
        self._count(run, usage.completion_tokens)
        if outcome != RETURNED and not usage.unread_tokens:
            self.stats.prompt_tokens += usage.prompt_tokens - usage.cached_tokens
            self.stats.cached_tokens += usage.cached_tokens
        del self._runs[run.key]
        with self._lock:
            self._reserved.discard(run.key)
        stage = run.stage if code else ""
        result = (run.answer.text, usage, str(code), stage, message, run.answer.extra() | (extra or {}))
        self._emit(Ended(run.key, str(outcome), str(reason), *result))

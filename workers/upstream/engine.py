"""The engine that passes jobs to an OpenAI-compatible server; see `workers.job_engine` for what the duties use."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shared.clock import Clock
from shared.jobs.job import ClaimRef
from shared.jobs.outcomes import EndCode, Outcome
from shared.log import get_logger
from workers.engine.backend import Facts, Prepared
from workers.engine.events import DROPPED, Ended, Event, FreeCapacity, JobSpec, Text
from workers.engine.sampling import Sampling
from workers.engine.stats import EngineStats
from workers.prompt_sizes import PromptSizes
from workers.upstream.availability import Availability
from workers.upstream.client import UpstreamClient
from workers.upstream.concurrency import Concurrency, places_in_use
from workers.upstream.endings import Endings, ExchangeEnding, PatienceLimits
from workers.upstream.faults import Misconfigured, NotAccepted, Rejected
from workers.upstream.model_check import ModelCheck
from workers.upstream.overtaken import Overtaken
from workers.upstream.request import build_request
from workers.upstream.run import Run

log = get_logger()

#: Interval at which an event loop without events shows that it works, in seconds.
_SWEEP_S = 0.1
#: The most tenants that are named as those whose jobs are not sent now.
_MOST_ASIDE = 64


@dataclass
class UpstreamStats(EngineStats):
    """The counters of an engine whose tokens another process computes."""

    #: The number of rounds of the event loop. An upstream may be silent for long, but the loop must go round.
    sweeps: int = 0

    @property
    def progress(self) -> int:
        """The number of rounds; the watchdog ends the process if the event loop hangs."""
        return self.sweeps


class UpstreamEngine:
    """Runs up to `slots` jobs at once on the upstream."""

    shares_steps = can_pause = False

    def __init__(
        self,
        client: UpstreamClient,
        facts: Facts,
        limits: PatienceLimits,
        emit: Callable[[Event], None],
        clock: Clock,
        *,
        on_room: Callable[[], None],
        concurrency: Concurrency,
    ) -> None:
        """Create an engine. `on_room` is called when the upstream takes requests again, or more at once."""
        self.facts, self.stats, self.sizes = facts, UpstreamStats(), PromptSizes()
        self._client, self._emit, self._clock = client, emit, clock
        self._concurrency, self._on_room = concurrency, on_room
        self._check = ModelCheck(client, facts.model)
        self._availability = Availability(self._check.probe, on_room, clock)
        self._endings = Endings(limits, self._availability, concurrency, self.sizes, clock, self._check.probe_as_client)
        self._overtaken = Overtaken()
        #: The tenants whose jobs are not sent now. Any thread may read it.
        self._aside: tuple[str, ...] = ()
        #: Protects the attributes below.
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Calls for the event loop that arrived before it ran.
        self._early: list[Callable[[], None]] = []
        #: Keys of the submitted jobs that have not ended, and how many of the upstream's places each takes.
        self._reserved: dict[ClaimRef, int] = {}
        # The attributes below are used by the event loop's thread only.
        self._runs: dict[ClaimRef, Run] = {}
        self._awake = asyncio.Event()
        #: How many jobs wait for the first part of their answers, and how many answers have begun so far. Embeddings
        #: arrive at once and so are not waited for.
        self._waiting = self._starts = 0
        #: When the state was observed last, and how many of the upstream's places were taken then.
        self._observed_s, self._in_flight = clock.monotonic(), 0
        #: The prompt tokens of the embeddings so far.
        self._embedded_tokens = 0

    def prepare(self, spec: JobSpec) -> Prepared:
        """Build the upstream's request and estimate the prompt's tokens. Raises JobRejected. For any thread."""
        request = build_request(spec, self.facts.model)
        tokens = self.sizes.estimate(spec.payload)
        length = max(1, spec.max_tokens // request.answers)
        return Prepared(spec, tokens, length, Sampling(), prompt=request, is_counted=False, candidates=request.answers)

    def submit(self, job: Prepared) -> None:
        with self._lock:
            if job.spec.key in self._reserved:
                raise ValueError(f"the engine already has a job with the key {job.spec.key!r}")
            self._reserved[job.spec.key] = job.candidates
        self._post(partial(self._start, job))

    def cancel(self, key: ClaimRef, *, drop: bool = False) -> None:
        """Close the job's request, if it has not ended. May be called from any thread."""
        self._post(partial(self._cancel_now, key, DROPPED if drop else Outcome.CANCELED))

    def pause(self, key: ClaimRef) -> bool:  # noqa: ARG002 - the Protocol's name
        """Return False: a request to the upstream cannot be paused."""
        return False

    def resume(self, key: ClaimRef, *, if_free: bool = False) -> bool:  # noqa: ARG002 - the Protocol's names
        return False

    def recall(self) -> None:
        """Do nothing: every job is sent to the upstream at once."""

    def free_capacity(self) -> FreeCapacity:
        """Return the free slots, which are 0 while the upstream takes no requests. May be called from any thread."""
        limit = 1 if self._endings.backoff.suspects else self._concurrency.limit
        with self._lock:
            free = max(0, limit + min(limit, self._overtaken.places) - sum(self._reserved.values()))
        return FreeCapacity(
            free if self._availability.is_open else 0,
            self.facts.cells,
            live=self._availability.is_live,
            aside=self._aside,
            trusts_last_attempts=self._endings.trusts_last_attempts,
        )

    @property
    def slots(self) -> int:
        """How many jobs may run at once now, or run already. May be called from any thread.

        A job with several answers takes a place of the upstream for each of them, but one slot.
        """
        limit = self._concurrency.limit
        with self._lock:
            further = sum(self._reserved.values()) - len(self._reserved)
            return max(limit + min(limit, self._overtaken.places) - further, len(self._reserved))

    def note_demand(self) -> None:
        self._post(lambda: self._concurrency.note_demand(self._clock.monotonic()))

    def figures(self) -> dict[str, str | int | float]:
        """Return what was learned about the sizes of prompts and the longest job. May be called from any thread."""
        figures: dict[str, str | int | float] = {**self.sizes.figures()}
        if self._check.max_model_len is not None:
            figures["upstream_max_model_len"] = self._check.max_model_len
        return figures

    def run(self, stop: threading.Event) -> None:
        asyncio.run(self._serve(stop))

    def wake(self) -> None:
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
                self._observe()
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
        run = Run(job, job.prompt, job.prompt.new_answer(), self._clock.monotonic())
        self._runs[run.key] = run
        self._waiting += run.places * run.streams
        self._observe()
        run.task = asyncio.create_task(self._exchange(run))
        # The callback also runs for a task that was canceled before it began.
        run.task.add_done_callback(partial(self._conclude, run))

    def _cancel_now(self, key: ClaimRef, outcome: str) -> None:
        run = self._runs.get(key)
        if run is not None and run.task is not None:
            run.requested_end = run.requested_end if run.requested_end == DROPPED else outcome
            run.task.cancel()

    def _observe(self) -> None:
        """Tell the controller the present state, and the duties if more requests may run."""
        now_s, starts = self._clock.monotonic(), self._starts
        tokens = self.stats.completion_tokens + self._embedded_tokens
        in_flight = places_in_use([run.places for run in self._runs.values()], self._concurrency.limit)
        waiting = min(in_flight, self._waiting)
        passed_s, self._observed_s = max(0.0, now_s - self._observed_s), now_s
        self.stats.jobs_s += passed_s * self._in_flight
        self.stats.jobs_squared_s += passed_s * self._in_flight**2
        self._in_flight = in_flight
        has_room = self._concurrency.observe(now_s, in_flight=in_flight, waiting=waiting, tokens=tokens, starts=starts)
        has_room |= self._overtaken.update(self._runs.values(), now_s)
        unanswered = (run for run in self._runs.values() if run.first_token_s is None)
        busy = {run.tenant for run in unanswered if run.key not in self._overtaken.keys}
        before, self._aside = self._aside, self._who_is_aside(now_s, busy)
        if has_room or not set(before) <= set(self._aside):
            self._on_room()

    def _who_is_aside(self, now_s: float, busy: set[str]) -> tuple[str, ...]:
        names = {*self._endings.backoff.aside(now_s, busy), *self._overtaken.tenants}
        return tuple(sorted(names)[:_MOST_ASIDE])

    async def _exchange(self, run: Run) -> None:
        """Run the job's request. Raises TimeoutError if a deadline passes or the upstream is silent for too long."""
        async with run.limit:
            run.last_part_s = self._clock.monotonic()
            self._watch(run)
            try:
                await self._client.run(run.request, run.answer, partial(self._receive, run))
            except NotAccepted as fault:
                # A replica with a wrong key must not fail the jobs that another one could run.
                model = self.facts.model if fault.lacks_model else ""
                if why := await self._check.probe_as_client(model):
                    raise Misconfigured(f"{fault} ({why})", model) from fault
                others = f"{fault} for this request, although it accepts others"
                raise Rejected(str(fault), fault.message if fault.lacks_model else others) from fault
            finally:
                run.stop_watching()

    def _watch(self, run: Run) -> None:
        """End the exchange if its time is over, or look again when it may be: each part of the answer extends it."""
        run.stop_watching()
        ends_s = min(run.expires_at_s, run.last_part_s + self._endings.limits.silence_s(run))
        left_s, loop = ends_s - self._clock.monotonic(), asyncio.get_running_loop()
        if left_s > 0:
            run.watch = loop.call_later(left_s, self._watch, run)
        else:
            run.limit.reschedule(loop.time())

    def _receive(self, run: Run, text: str | None) -> None:
        """Handle something that the upstream sent: see `UpstreamClient.run`."""
        if text is None:
            # It may be a comment that a proxy sends while the server behind it hangs.
            if run.answer.has_role and run.prompt_read_s is None:
                run.prompt_read_s = self._clock.monotonic()
            return
        run.last_part_s = now_s = self._clock.monotonic()
        if self._endings.backoff.note_part(run.tenant, run.started_s, now_s):
            self._on_room()
        if run.first_token_s is None:
            run.first_token_s = now_s
            self._overtaken.note_first_part(run, now_s)
            self._waiting -= run.places * run.streams
            self._starts += run.places
            self._watch(run)
            self._observe()
        self._count(run, run.answer.completion_tokens)
        if text:
            self._emit(Text(run.key, text, run.answer.reported))

    def _count(self, run: Run, completion_tokens: int) -> None:
        """Count the job's tokens so far. A count that an earlier estimate exceeds changes nothing."""
        if completion_tokens > run.counted:
            self.stats.completion_tokens += completion_tokens - run.counted
            run.counted = completion_tokens

    # How a job ends.

    def _conclude(self, run: Run, task: asyncio.Task[None]) -> None:
        """End the job according to how its exchange ended: free its slot, then emit its Ended event."""
        try:
            ending = self._endings.ending(run, task)
            extra = run.answer.extra() | ending.extra
        except Exception:
            # Without an end, the job would keep its slot and its lease for ever.
            log.exception("upstream.engine_fault", job=run.job_id)
            ending = ExchangeEnding(Outcome.FAILED, "", EndCode.ENGINE_ERROR, "a fault in the upstream engine")
            extra = {}
        usage = run.usage(self._clock.monotonic())
        self._count(run, usage.completion_tokens)
        self.stats.prompt_tokens += usage.read_tokens - usage.cached_tokens
        self.stats.cached_tokens += usage.cached_tokens
        self._embedded_tokens += 0 if run.streams else usage.read_tokens
        del self._runs[run.key]
        with self._lock:
            self._reserved.pop(run.key, None)
        self._waiting -= run.places * (run.streams and run.first_token_s is None)
        self._observe()
        stage = run.stage if ending.code else ""
        result = (run.answer.text, usage, str(ending.code), stage, ending.message, extra)
        self._emit(Ended(run.key, str(ending.outcome), str(ending.reason), *result, wait_s=ending.wait_s))

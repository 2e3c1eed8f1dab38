"""One engine for the jobs of several pools. To the duties of a pool it looks like an engine of the pool's own."""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import replace

from shared.jobs.adapter_list import Adapter
from shared.jobs.job import ClaimRef
from workers.engine.backend import Facts, Prepared
from workers.engine.events import Ended, Event, FreeCapacity, JobSpec
from workers.engine.stats import EngineStats
from workers.job_engine import JobEngine

Emit = Callable[[Event], None]


class EventRouter:
    """Passes each event of the engine on to the pool whose job it is about."""

    def __init__(self) -> None:
        #: The claim of each submitted job that has not ended → where its events go. Each call on the dict is atomic.
        self._emits: dict[ClaimRef, Emit] = {}

    def expect(self, key: ClaimRef, emit: Emit) -> None:
        self._emits[key] = emit

    def emit(self, event: Event) -> None:
        """Accept an event. The engine's thread calls this."""
        emit = self._emits.pop(event.key, None) if isinstance(event, Ended) else self._emits.get(event.key)
        if emit is not None:
            emit(event)


class PoolEngine(JobEngine):
    """The engine as the duties of one pool see it, whose jobs are computed with `adapter`."""

    def __init__(self, engine: JobEngine, router: EventRouter, adapter: Adapter | None = None) -> None:
        self._engine, self._router, self._adapter = engine, router, "" if adapter is None else adapter.name
        self._emit: Emit = lambda _event: None
        #: The tokens of the pool's own jobs, and of each job that has not ended how many of them are counted.
        self._own, self._counted = EngineStats(), dict[ClaimRef, int]()
        facts = engine.facts
        if adapter is not None and facts.fingerprint:
            # Another worker continues a job only with the same adapter.
            parts = f"{facts.fingerprint} {_fingerprint_of(adapter)}"
            facts = replace(facts, fingerprint=hashlib.sha256(parts.encode()).hexdigest()[:16])
        self._facts = facts

    def connect(self, emit: Emit, /, *, on_ending: Callable[[], None]) -> JobEngine:  # noqa: ARG002 - see below
        """Have the pool's events sent to `emit`. No job is prefetched, so `on_ending` is not called.

        Which pool gets a slot is decided when the slot is free.
        """
        self._emit = emit
        return self

    @property
    def facts(self) -> Facts:
        return self._facts

    @property
    def stats(self) -> EngineStats:
        """The counters of the whole engine."""
        return self._engine.stats

    @property
    def slots(self) -> int:
        """All slots of the engine. `SlotShares` says which of them the pool may use."""
        return self._engine.slots

    @property
    def shares_steps(self) -> bool:
        return self._engine.shares_steps

    @property
    def can_pause(self) -> bool:
        return self._engine.can_pause

    def prepare(self, spec: JobSpec) -> Prepared:
        return self._engine.prepare(replace(spec, adapter=self._adapter))

    def reported_stats(self) -> EngineStats:
        """Return the counters for the pool's heartbeat: the tokens of its jobs.

        The pool of the model also reports the other counters, which are those of the whole engine.
        """
        own = self._own
        if self._adapter:
            return own
        return replace(
            self.stats,
            prompt_tokens=own.prompt_tokens,
            cached_tokens=own.cached_tokens,
            completion_tokens=own.completion_tokens,
        )

    def submit(self, job: Prepared) -> None:
        self._counted[job.spec.key] = len(job.spec.answer)
        self._router.expect(job.spec.key, self._tell)
        self._engine.submit(job)

    def _tell(self, event: Event) -> None:
        """Count an event's tokens, and pass it on. The engine's thread calls this."""
        if isinstance(event, Ended):
            counted, usage = self._counted.pop(event.key, 0), event.usage
            self._own.completion_tokens += max(0, usage.completion_tokens - counted)
            self._own.prompt_tokens += max(0, usage.read_tokens - usage.cached_tokens)
            self._own.cached_tokens += usage.cached_tokens
        else:
            self._own.completion_tokens += max(0, event.completion_tokens - self._counted.get(event.key, 0))
            self._counted[event.key] = event.completion_tokens
        self._emit(event)

    def cancel(self, key: ClaimRef, *, drop: bool = False) -> None:
        self._engine.cancel(key, drop=drop)

    def pause(self, key: ClaimRef) -> bool:
        return self._engine.pause(key)

    def resume(self, key: ClaimRef, *, if_free: bool = False) -> bool:
        return self._engine.resume(key, if_free=if_free)

    def recall(self) -> None:
        """Have the jobs of all pools returned that have no slot. Those of other pools are then claimed again."""
        self._engine.recall()

    def free_capacity(self) -> FreeCapacity:
        return replace(self._engine.free_capacity(), slots_ending_soon=0)

    def note_demand(self) -> None:
        self._engine.note_demand()

    def figures(self) -> dict[str, str | int | float]:
        return self._engine.figures()

    def run(self, stop: threading.Event) -> None:
        self._engine.run(stop)

    def wake(self) -> None:
        self._engine.wake()


def _fingerprint_of(adapter: Adapter) -> str:
    """Return a text that identifies the adapter's file, unless the engine simulates, and its scale."""
    if not adapter.path.is_file():
        return ""
    with adapter.path.open("rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()} {adapter.scale}"

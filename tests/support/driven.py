"""An engine that a test steps by itself, with the events that the engine has emitted."""

import random
from collections.abc import Iterable
from typing import Any

from shared.candidates import MAX_CANDIDATES, read_candidates
from shared.clock import Clock
from workers.engine.backend import Backend
from workers.engine.events import Ended, Event, JobSpec, Text
from workers.engine.loop import Engine
from workers.engine.stats import EngineSettings
from workers.engine.step_time import StepTimeModel

NEVER_S = 1e12


def step_times(**times_ms: float) -> StepTimeModel:
    """Return a model of step times that no measured step changes."""
    return StepTimeModel(**times_ms, prior_weight=1e12)


class Driven:
    """An engine that the test steps, with the events that it has emitted."""

    def __init__(
        self, backend: Backend, clock: Clock | None = None, *, fit: StepTimeModel | None = None, **settings: float
    ) -> None:
        self.events: list[Event] = []
        self.engine = Engine(backend, EngineSettings(**settings), self.events.append, clock, fit)

    def submit(
        self,
        key: str,
        payload: dict[str, Any],
        *,
        tenant: str = "blue",
        deadline_s: float = NEVER_S,
        **fields: Any,
    ) -> None:
        """Prepare and submit a job."""
        max_tokens = payload.get("max_tokens", 16)
        self.engine.submit(self.engine.prepare(JobSpec(key, tenant, payload, max_tokens, deadline_s, **fields)))

    def run_until_idle(self) -> None:
        """Step until there is nothing to do, and check that the engine is empty."""
        while self.engine.step():
            pass
        self.check_empty()

    def run_with_pauses(self, jobs: int, dice: random.Random) -> None:
        """Pause and resume jobs at random until `jobs` have ended, and check that the engine is empty."""
        paused: set[str] = set()
        while len(self.ended) < jobs:
            self.engine.step()
            for key in sorted(sequence.key for sequence in self.engine._running.values()):
                if dice.random() < 0.15 and self.engine.pause(key):
                    paused.add(key)
            for key in sorted(paused):
                if dice.random() < 0.3 and self.engine.resume(key):
                    paused.discard(key)
            paused -= set(self.ended)
        self.check_empty()

    def answers(self, schema: dict[str, Any], **fields: Any) -> Iterable[Ended]:
        """Return the ends of three jobs with different seeds, whose answers must fit the schema."""
        form = {"type": "json_schema", "schema": schema}
        for seed in range(3):
            self.submit(str(seed), {"prompt": "dibo", "seed": seed, "response_format": form, **fields})
        self.run_until_idle()
        return self.ended.values()

    def close(self) -> None:
        """Drop all jobs, so that the backend can be used again."""
        self.engine.drop_all()

    def check_empty(self) -> None:
        """Check that no slot or cell is in use, and that every job ended once, with the text that it streamed."""
        self.engine.check_idle()
        capacity = self.engine.free_capacity()
        assert (capacity.slots, capacity.cells) == (self.engine.backend.slots, self.engine.backend.cells)
        assert len(self.ended) == sum(isinstance(event, Ended) for event in self.events)
        for key, ended in self.ended.items():
            streamed = self.streamed(key)
            # The pieces of candidates that were generated side by side interleave.
            assert read_candidates(streamed, MAX_CANDIDATES) == read_candidates(ended.text, MAX_CANDIDATES)

    @property
    def ended(self) -> dict[str, Ended]:
        """The end of each job, by the job's key."""
        return {event.key: event for event in self.events if isinstance(event, Ended)}

    def streamed(self, key: str) -> str:
        """Return the text that a job has streamed."""
        return "".join(event.text for event in self.events if isinstance(event, Text) and event.key == key)

"""An engine that a test steps by hand, with what it has reported."""

from collections.abc import Iterable
from typing import Any

from shared.clock import Clock
from workers.engine.backend import Backend
from workers.engine.events import Ended, Event, JobSpec, Text
from workers.engine.loop import Engine
from workers.engine.stats import EngineSettings

NEVER_S = 1e12


class Driven:
    """An engine with what it has reported; stepped by the test."""

    def __init__(self, backend: Backend, clock: Clock | None = None, **settings: float) -> None:
        self.events: list[Event] = []
        self.engine = Engine(backend, EngineSettings(**settings), self.events.append, clock)

    def submit(self, key: str, payload: dict[str, Any], *, deadline_s: float = NEVER_S, **more: Any) -> None:
        """Prepare and submit a job."""
        max_tokens = payload.get("max_tokens", 16)
        self.engine.submit(self.engine.prepare(JobSpec(key, "blue", payload, max_tokens, deadline_s, **more)))

    def run_dry(self) -> None:
        """Step until there is nothing to do, and look at the books."""
        while self.engine.step():
            pass
        self.check_empty()

    def answers(self, schema: dict[str, Any], **asked: Any) -> Iterable[Ended]:
        """How three answers of different seeds end that shall fit the schema."""
        form = {"type": "json_schema", "schema": schema}
        for seed in range(3):
            self.submit(str(seed), {"prompt": "dibo", "seed": seed, "response_format": form, **asked})
        self.run_dry()
        return self.ended.values()

    def close(self) -> None:
        """Drop whatever is left, so that the backend can be used again."""
        self.engine.drop_all()

    def check_empty(self) -> None:
        """Nothing is held anywhere, and every job has ended once, with the text that it streamed."""
        self.engine.check_idle()
        room = self.engine.room()
        assert (room.slots, room.cells) == (self.engine.backend.slots, self.engine.backend.cells)
        assert len(self.ended) == sum(isinstance(event, Ended) for event in self.events)
        for key, ended in self.ended.items():
            assert self.streamed(key) == ended.text

    @property
    def ended(self) -> dict[str, Ended]:
        """How each job ended."""
        return {event.key: event for event in self.events if isinstance(event, Ended)}

    def streamed(self, key: str) -> str:
        """The texts of a job's events, put together."""
        return "".join(event.text for event in self.events if isinstance(event, Text) and event.key == key)

"""An upstream engine that runs on a thread, and its events, for tests against real HTTP servers."""

import threading
from dataclasses import replace
from typing import Any

from shared.clock import RealClock
from shared.jobs.job import ClaimRef
from shared.settings.settings import load
from tests.support.processes import wait_for
from workers.engine.events import Ended, Event, JobSpec
from workers.upstream.engine import UpstreamEngine
from workers.upstream.factory import make_upstream_engine

CHAT = {"messages": [{"role": "user", "content": "tell me a story"}]}


def claim(job_id: str) -> ClaimRef:
    """Return the claim under which a scene submits the job unless the test names another token."""
    return ClaimRef(job_id, "t")


class UpstreamScene:
    """An engine that runs on a thread, and its events."""

    def __init__(self, url: str, **environ: str) -> None:
        ours = {
            "PENSTOCK_ENGINE": "upstream",
            "PENSTOCK_UPSTREAM_URL": url,
            "PENSTOCK_UPSTREAM_MODEL": "m",
            "PENSTOCK_MAX_BATCH_SIZE": "2",
        }
        self.events: list[Event] = []
        self.rooms = 0
        self._stop = threading.Event()
        settings = load(environ=ours | environ, dotenv=None)
        self.engine: UpstreamEngine = make_upstream_engine(settings, self.events.append, on_ending=self._note_room)
        self._thread = threading.Thread(target=self.engine.run, args=(self._stop,), daemon=True)
        self._thread.start()

    def _note_room(self) -> None:
        self.rooms += 1

    def wait_until_open(self) -> None:
        wait_for(lambda: self.engine.free_capacity().slots, "an upstream that takes requests")

    def submit(self, payload: dict[str, Any] | None = None, job_id: str = "1", token: str = "t", **fields: Any) -> None:
        spec = JobSpec(ClaimRef(job_id, token), "blue", payload or CHAT, 16, RealClock().monotonic() + 60)
        self.engine.submit(self.engine.prepare(replace(spec, **fields)))

    def ended(self, job_id: str = "1", token: str = "t") -> Ended:
        key = ClaimRef(job_id, token)
        return wait_for(
            lambda: next((e for e in self.events if isinstance(e, Ended) and e.key == key), None), f"the end of {key}"
        )

    def end(self, payload: dict[str, Any] | None = None, job_id: str = "1", token: str = "t", **fields: Any) -> Ended:
        """Submit a job and return its end."""
        self.wait_until_open()
        self.submit(payload, job_id, token, **fields)
        return self.ended(job_id, token)

    def close(self) -> None:
        self._stop.set()
        self.engine.wake()
        self._thread.join(10)
        assert not self._thread.is_alive()

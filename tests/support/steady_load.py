"""Clients of a served door that send one job after another, and note when each was answered and under which id."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import httpx

from shared.cells.ids import cell_of_id
from tests.support.served import Served


class Load:
    """Sends one job after another for a tenant, and notes when each was sent and answered."""

    def __init__(self, served: Served, tenant: str, *, pause_s: float = 0.0) -> None:
        """`pause_s` is the time between an answer and the next job."""
        self._url, self._tenant, self._pause_s = served.url, tenant, pause_s
        #: When a job was sent and answered, in seconds of the monotonic clock, and its id.
        self.admitted: list[tuple[float, float, str]] = []
        self.refused: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30, headers={"X-Tenant": self._tenant}) as client:
            while not self._stop.is_set():
                sent_s = time.monotonic()
                answer = client.post("/v1/jobs?wait_ms=500", json={"prompt": "hello", "max_tokens": 4}).json()
                if "reason" in answer:
                    self.refused.append(answer["reason"])
                    # A client comes back after the time that it was told.
                    self._stop.wait(answer["retry_hint_ms"] / 1000)
                else:
                    self.admitted.append((sent_s, time.monotonic(), answer["id"]))
                    self._stop.wait(self._pause_s)

    def longest_gap_s(self, since_s: float) -> float:
        times = [since_s, *(at_s for _, at_s, _ in self.admitted if at_s > since_s)]
        return max(after - before for before, after in pairwise(times))

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(timeout=40)
            assert not self._thread.is_alive()


def cells_since(load: Load, at_s: float) -> Callable[[], set[str]]:
    return lambda: {cell_of_id(job_id) for sent_s, _, job_id in load.admitted if sent_s > at_s}


def has_ended(served: Served, job_id: str, tenant: str) -> bool:
    answer = served.http.get(f"/v1/jobs/{job_id}", headers={"X-Tenant": tenant})
    return answer.status_code == 200 and answer.json()["status"] == "succeeded"

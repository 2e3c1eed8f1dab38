"""Clients of two doors that keep a ledger of what they asked for and were told, to compare metrics with."""

import itertools
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from shared.metrics.spec import BUCKETS_MS

#: How long a refused client waits before it asks again, unless it waits for its hint, in seconds.
_PAUSE_S = 0.1


@dataclass
class Ledger:
    """What all clients counted. A key is the tenant with a verdict, an outcome or a kind of tokens."""

    offers: Counter[tuple[str, str]] = field(default_factory=Counter)
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    tokens: Counter[tuple[str, str]] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    ttft_ms: dict[str, list[int]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add_ended(self, tenant: str, job: dict[str, Any]) -> None:
        with self.lock:
            self.ended[tenant, job["status"]] += 1
            usage = job["usage"]
            for kind in ("prompt", "completion"):
                self.tokens[tenant, kind] += usage[f"{kind}_tokens"]
            if usage["ttft_ms"] is not None:
                self.ttft_ms.setdefault(tenant, []).append(usage["ttft_ms"])

    def ttft_quantile_s(self, tenant: str, part: float) -> float:
        """Return the quantile as it can be read from a histogram: interpolated in the bucket in which it falls."""
        times = self.ttft_ms[tenant]
        rank, below, lower_ms = part * len(times), 0, 0
        for upper_ms in BUCKETS_MS:
            inside = sum(lower_ms < ms <= upper_ms or (lower_ms == 0 and ms == 0) for ms in times)
            if below + inside >= rank:
                return (lower_ms + (upper_ms - lower_ms) * (rank - below) / inside) / 1000
            below, lower_ms = below + inside, upper_ms
        raise AssertionError(f"a time is above all buckets: {max(times)} ms")


class Load:
    """Some clients of each tenant, which ask without a pause until the context ends, and then wait for their jobs.

    The clients of `canceling` cancel every third job and let every fourth one expire. Every other refused client comes
    back when it was told, with its ticket.
    """

    def __init__(self, doors: Sequence[str], keys: dict[str, str], *, clients: int, canceling: str) -> None:
        self.ledger = Ledger()
        self._doors, self._canceling = itertools.cycle(doors), canceling
        self._done = threading.Event()
        self._faults: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(tenant, key))
            for tenant, key in keys.items()
            for _ in range(clients)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(120)
        if self._faults:
            raise self._faults[0]

    def _run(self, tenant: str, key: str) -> None:
        try:
            with httpx.Client(timeout=60, headers={"Authorization": f"Bearer {key}"}) as http:
                for number in itertools.count():
                    if self._done.is_set():
                        return
                    self._ask(http, tenant, number)
        except BaseException as error:  # noqa: BLE001 - the test fails with it when the context ends
            self._faults.append(error)

    def _ask(self, http: httpx.Client, tenant: str, number: int) -> None:
        door = next(self._doors)
        body: dict[str, Any] = {"prompt": "tell me a story", "max_tokens": 5 + number % 40}
        expires = tenant == self._canceling and number % 4 == 1
        if expires:
            body |= {"max_tokens": 2_000, "deadline_ms": 300}
        answer = self._offer(http, door, tenant, body)
        if "return_ticket" in answer and number % 2 == 0:
            self._done.wait(answer["retry_hint_ms"] / 1000)
            answer = self._offer(http, door, tenant, body | {"return_ticket": answer["return_ticket"]})
        if "id" not in answer:
            self._done.wait(_PAUSE_S)
            return
        job_url = f"{door}/v1/jobs/{answer['id']}"
        if tenant == self._canceling and number % 3 == 0 and not expires:
            self._count(http.delete(job_url))
        job = answer
        while job["usage"] is None:
            job = self._count(http.get(job_url, params={"wait_ms": 20_000})).json()
        self.ledger.add_ended(tenant, job)

    def _offer(self, http: httpx.Client, door: str, tenant: str, body: dict[str, Any]) -> dict[str, Any]:
        response = self._count(http.post(f"{door}/v1/jobs", json=body))
        answer: dict[str, Any] = response.json()
        assert "id" in answer or "reason" in answer, (body, answer)
        with self.ledger.lock:
            self.ledger.offers[tenant, "admitted" if "id" in answer else answer["reason"]] += 1
        return answer

    def _count(self, response: httpx.Response) -> httpx.Response:
        with self.ledger.lock:
            self.ledger.statuses[str(response.status_code)] += 1
        return response

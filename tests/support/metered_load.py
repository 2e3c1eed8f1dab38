"""Clients of two doors that keep a ledger of their requests and answers, to compare metrics with."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from shared.metrics.spec import BUCKETS_MS

#: How long a refused client waits before it asks again, unless it waits for its hint, in seconds.
_PAUSE_S = 0.1
#: Distinguishes the bodies of all offers, so that no offer can be taken for the return of another refused client.
_SEEDS = itertools.count(1)


@dataclass
class Ledger:
    """The counts of all clients. A key is the tenant with a verdict, an outcome, a kind of tokens or a result."""

    offers: Counter[tuple[str, str]] = field(default_factory=Counter)
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: By kind: prompt, cached, completion, and `wasted|<outcome>`.
    tokens: Counter[tuple[str, str]] = field(default_factory=Counter)
    promises: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: First returns with a ticket: admitted, refused or late; `unsure` if only the door knows whether one was late.
    returns: Counter[tuple[str, str]] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    #: Answers by route and status.
    routes: Counter[tuple[str, str]] = field(default_factory=Counter)
    ttft_ms: dict[str, list[int]] = field(default_factory=dict)
    #: For each job: when it ended (Unix time), its tenant, and its computed tokens; a generated one counts 4.
    served: list[tuple[float, str, int]] = field(default_factory=list)
    #: For each job: when it ended, its tenant, and the tokens that count in a budget: all that its usage names.
    budgeted: list[tuple[float, str, int]] = field(default_factory=list)
    #: How long each request waited for its answer, in seconds, by method.
    waits_s: dict[str, list[float]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add_ended(self, tenant: str, job: dict[str, Any]) -> None:
        usage, outcome = job["usage"], job["status"]
        prompt, cached, completion = (usage[f"{kind}_tokens"] for kind in ("prompt", "cached", "completion"))
        told = prompt + completion
        if not completion:
            # A short prompt is computed in one step with the first token. Before that, the usage names it all the same.
            prompt = cached = 0
        with self.lock:
            self.ended[tenant, outcome] += 1
            for kind, tokens in (("prompt", prompt), ("cached", cached), ("completion", completion)):
                self.tokens[tenant, kind] += tokens
            if outcome != "succeeded":
                self.tokens[tenant, f"wasted|{outcome}"] += prompt - cached + completion
            # A job that was canceled, or that failed because of its request, breaks no promise.
            if outcome not in {"canceled", "failed"}:
                in_time = outcome == "succeeded" and job["ended_at"] <= job["deadline_at"]
                self.promises[tenant, "kept" if in_time else "broken"] += 1
            if usage["ttft_ms"] is not None:
                self.ttft_ms.setdefault(tenant, []).append(usage["ttft_ms"])
            self.served.append((job["ended_at"], tenant, prompt - cached + 4 * completion))
            self.budgeted.append((job["ended_at"], tenant, told))

    def add_return(self, tenant: str, verdict: str, hint_ms: int, window_ms: int, shortest_s: float, longest_s: float):
        """Count a return that came back after at least `shortest_s` and at most `longest_s`."""
        last_s = (hint_ms + window_ms) / 1000
        result = verdict if longest_s <= last_s else "late" if shortest_s > last_s else "unsure"
        with self.lock:
            self.returns[tenant, result] += 1

    def of(self, counts: Counter[tuple[str, str]], name: str, *tenants: str) -> int:
        """Return the sum of a count over the tenants, all of them by default."""
        return sum(
            number for (tenant, what), number in counts.items() if what == name and tenant in (tenants or tenant)
        )

    def ttft_quantile_s(self, part: float, *tenants: str) -> float:
        """Return the quantile over the tenants as it can be read from a histogram: interpolated in its bucket."""
        return bucket_quantile_s([ms for tenant in tenants for ms in self.ttft_ms[tenant]], part)


def bucket_quantile_s(times_ms: Sequence[float], part: float) -> float:
    """Return a quantile of times as Prometheus reads it from a histogram with the buckets of jobs' times."""
    rank, below, lower_ms = part * len(times_ms), 0, 0
    for upper_ms in BUCKETS_MS:
        inside = sum(lower_ms < ms <= upper_ms or (lower_ms == 0 and ms == 0) for ms in times_ms)
        if below + inside >= rank:
            return (lower_ms + (upper_ms - lower_ms) * (rank - below) / inside) / 1000
        below, lower_ms = below + inside, upper_ms
    raise AssertionError(f"a time is above all buckets: {max(times_ms)} ms")


class Load:
    """Some clients of each tenant, which ask without a pause until the context ends, and then wait for their jobs.

    The clients of `canceling` cancel every third job, let every fourth one expire and every eleventh one fail. Every
    other refused client comes back when it was told, with its ticket.
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
        body: dict[str, Any] = {"prompt": "tell me a story", "max_tokens": 5 + number % 40, "seed": next(_SEEDS)}
        expires = tenant == self._canceling and number % 4 == 1
        if expires:
            body |= {"max_tokens": 2_000, "deadline_ms": 300}
        elif tenant == self._canceling and number % 11 == 2:
            # The engine sim has no logprobs, which only the worker finds out.
            body |= {"logprobs": 1}
        asked_s = time.monotonic()
        answer = self._offer(http, door, tenant, body)
        if "return_ticket" in answer and number % 2 == 0:
            answer = self._return(http, door, tenant, body, answer, asked_s)
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

    def _return(
        self, http: httpx.Client, door: str, tenant: str, body: dict[str, Any], refusal: dict[str, Any], asked_s: float
    ) -> dict[str, Any]:
        told_s, hint_ms, window_ms = time.monotonic(), refusal["retry_hint_ms"], refusal["return_window_ms"]
        if self._done.wait(hint_ms / 1000):
            return refusal
        sent_s = time.monotonic()
        answer = self._offer(http, door, tenant, body | {"return_ticket": refusal["return_ticket"]})
        verdict = "admitted" if "id" in answer else "refused"
        shortest_s, longest_s = sent_s - told_s, time.monotonic() - asked_s
        self.ledger.add_return(tenant, verdict, hint_ms, window_ms, shortest_s, longest_s)
        return answer

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
            route = "/v1/jobs" if response.request.method == "POST" else "/v1/jobs/<job_id>"
            self.ledger.routes[route, str(response.status_code)] += 1
            self.ledger.waits_s.setdefault(response.request.method, []).append(response.elapsed.total_seconds())
        return response

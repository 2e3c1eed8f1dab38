"""Tests that the history tells what clients have noted themselves, although the store and the door are killed."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from shared.history.points import RINGS, Point, summed
from shared.history.stored import StoredHistory
from shared.jobs.job import new_job_id
from tests.support.ports import free_port
from tests.support.processes import Process, Stage, wait_for
from tests.support.served import SIM
from tests.support.store_servers import StoreServer

#: How many requests each tenant sends, with how many clients at once, and the words of its answers.
TENANTS = {"blue": (60, 1, 20), "red": (240, 12, 20), "green": (60, 2, 45)}
#: How far the history may be from the clients' ledger, as a fraction.
MOST_OFF = 0.02


class Ledger:
    """The clients of all tenants, and what they note: the jobs that were admitted, and the reasons of refusals.

    A request whose answer a kill has lost is sent again. The store may have refused it before, which the history counts
    and the client does not know: the key makes one job of both requests, but two refusals are two.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.jobs: dict[str, list[str]] = {tenant: [] for tenant in TENANTS}
        self.refused: dict[str, Counter[str]] = {tenant: Counter() for tenant in TENANTS}
        #: How many requests the door or the store may have refused without telling the client.
        self.lost: Counter[str] = Counter()
        #: Whether the store is killed and does not answer again yet.
        self.store_is_away = False
        self._left = {tenant: requests for tenant, (requests, _, _) in TENANTS.items()}
        self._lock = threading.Lock()
        self.threads = [
            threading.Thread(target=self._send, args=(tenant,), daemon=True)
            for tenant, (_, clients, _) in TENANTS.items()
            for _ in range(clients)
        ]

    @property
    def sent(self) -> float:
        """The part of all requests that has been sent."""
        return 1 - sum(self._left.values()) / sum(requests for requests, _, _ in TENANTS.values())

    def _send(self, tenant: str) -> None:
        with httpx.Client(base_url=self._url, timeout=20) as http:
            while self._take(tenant):
                self._note(tenant, self._offer(http, tenant))

    def _take(self, tenant: str) -> bool:
        with self._lock:
            self._left[tenant] -= 1
            return self._left[tenant] >= 0

    def _offer(self, http: httpx.Client, tenant: str) -> dict[str, Any]:
        """Send one request until the door and the store have answered it. The key makes a job of it once."""
        headers = {"X-Tenant": tenant, "Idempotency-Key": new_job_id(), "x-request-id": new_job_id()}
        body = {"prompt": "tell me a story", "max_tokens": TENANTS[tenant][2]}
        counted = False
        while True:
            was_away = self.store_is_away
            try:
                answer = http.post("/v1/jobs", json=body, headers=headers, params={"wait_ms": 2_000})
                told: dict[str, Any] = answer.json()
                if told.get("reason") != "store_unavailable" and answer.status_code != 500:
                    return told
                # While the store is away, only the attempt that was under way when it was killed can have reached it.
                may_be_refused = not (counted and was_away)
            except httpx.TransportError as error:
                may_be_refused = not isinstance(error, httpx.ConnectError)
            if may_be_refused:
                counted = True
                with self._lock:
                    self.lost[tenant] += 1
            time.sleep(0.1)

    def _note(self, tenant: str, told: dict[str, Any]) -> None:
        with self._lock:
            if told.get("status") == "yield":
                self.refused[tenant][told["reason"]] += 1
            else:
                self.jobs[tenant].append(told["id"])

    def tokens(self, tenant: str, read: Callable[[str], dict[str, Any]]) -> Counter[str]:
        """Return what the tenant's jobs have used, by their answers."""
        used: Counter[str] = Counter()
        for job_id in self.jobs[tenant]:
            job = read(job_id)
            used[job["status"]] += 1
            for kind in ("prompt", "completion"):
                used[kind] += (job["usage"] or {}).get(f"{kind}_tokens", 0)
        return used


@pytest.mark.minutes
def test_the_history_equals_the_ledger_of_the_clients_over_a_restart_of_store_and_door(tmp_path):
    port = free_port()
    bounds = {"PENSTOCK_MAX_QUEUE_SIZE": "6", "PENSTOCK_MAX_INFLIGHT": "64", "PENSTOCK_MAX_BATCH_SIZE": "4"}
    with (
        StoreServer(tmp_path / "server") as server,
        Stage(tmp_path / "stage", **(SIM | bounds | {"REDIS_URL": server.url})) as stage,
    ):

        def start_door() -> Process:
            return stage.web(port, PENSTOCK_AUTH="open", PENSTOCK_WEB_WORKERS="1")

        door = start_door()
        stage.worker(wait=False)
        http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20)
        wait_for(lambda: http.get("/health/ready").status_code == 200, "a live worker", timeout_s=60)
        ledger = Ledger(f"http://127.0.0.1:{port}")
        for thread in ledger.threads:
            thread.start()
        wait_for(lambda: ledger.sent > 0.3, "a third of the requests", timeout_s=120)
        ledger.store_is_away = True
        server.process.kill()
        server.start()
        ledger.store_is_away = False
        wait_for(lambda: ledger.sent > 0.6, "two thirds of the requests", timeout_s=120)
        door.kill()
        start_door()
        for thread in ledger.threads:
            thread.join(120)
            assert not thread.is_alive()

        def read(tenant: str, job_id: str) -> dict[str, Any]:
            told: dict[str, Any] = http.get(f"/v1/jobs/{job_id}", headers={"X-Tenant": tenant}).json()
            return told

        wait_for(
            lambda: http.get("/metrics/fleet").text.count("penstock_inflight 0.0"), "the end of all jobs", timeout_s=60
        )
        history = StoredHistory(server.client)
        ended_ms = history.now_ms()
        wait_for(lambda: any(one.to_ms > ended_ms for one in points_of(history, 10)), "the last point", timeout_s=60)
        used_by = {tenant: ledger.tokens(tenant, partial(read, tenant)) for tenant in TENANTS}
        for length_s, _ in RINGS:
            points = points_of(history, length_s)
            for tenant, used in used_by.items():
                entry = summed(point.tenants[tenant] for point in points if tenant in point.tenants)
                told = Counter({name: entry[name] for name in (*used, "admitted")}) + Counter(entry.refused)
                noted = used + ledger.refused[tenant] + Counter(admitted=len(ledger.jobs[tenant]))
                print(
                    f"{length_s} s, {tenant}: the clients {dict(noted)}, the history {dict(told)}, lost {ledger.lost}"
                )
                for name, number in noted.items():
                    most_off = max(1, MOST_OFF * number)
                    lost = ledger.lost[tenant] if name in ledger.refused[tenant] else 0
                    assert number - most_off <= told[name] <= number + most_off + lost, name
                # A job that was taken from its worker has its first token in an attempt that may have been lost.
                assert sum(entry.first.values()) == pytest.approx(used["succeeded"], rel=MOST_OFF, abs=4)
        http.close()


def points_of(history: StoredHistory, length_s: int) -> list[Point]:
    now_ms = history.now_ms()
    return history.read(length_s, now_ms - 3_600_000, now_ms)

"""A cell's slot moves between nodes while the store runs some hundred jobs a second: nothing is lost or doubled."""

import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from shared.audit.invariants import find_breaches
from shared.errors import StoreUnavailable
from shared.settings.settings import Settings
from shared.store.connection import DOOR, WORKER, Timeouts, open_client
from shared.store.replies import Admitted
from shared.store.store import Store
from tests.support.builders import MODEL, a_job, an_ending, heartbeat, stat
from tests.support.store_cluster import StoreCluster

pytestmark = [pytest.mark.long, pytest.mark.no_prefix]

SECONDS, CLIENTS, SLOTS = 8.0, 2, 64


@pytest.fixture
def cluster(tmp_path) -> Iterator[StoreCluster]:
    with StoreCluster(tmp_path) as cluster:
        yield cluster


class Flood:
    """Clients that offer one job after another, and a worker that ends all of them."""

    def __init__(self, cluster: StoreCluster, settings: Settings) -> None:
        self._url, self.prefix = cluster.url, cluster.prefix_on(cluster.nodes[0])
        self.store = self._open(WORKER)
        self.store.configure(settings)
        heartbeat(self.store, slots=SLOTS)
        #: The ids of acknowledged jobs, and when they were acknowledged.
        self.acknowledged: list[tuple[float, str]] = []
        self._stop = threading.Event()

    def _open(self, timeouts: Timeouts) -> Store:
        return Store(open_client(self._url, name="penstock-test", prefix=self.prefix, timeouts=timeouts))

    def threads(self) -> list[threading.Thread]:
        clients = [threading.Thread(target=self._offer, args=(f"t{number}",)) for number in range(CLIENTS)]
        return [*clients, threading.Thread(target=self._work)]

    def stop(self) -> None:
        self._stop.set()

    def _offer(self, tenant: str) -> None:
        store = self._open(DOOR)
        while not self._stop.is_set():
            job, answer = a_job(tenant), None
            while answer is None:
                try:
                    answer = store.admit(job)
                except StoreUnavailable:
                    self._stop.wait(0.01)
            assert isinstance(answer, Admitted), answer
            self.acknowledged.append((time.monotonic(), answer.id))

    def _work(self) -> None:
        store, told_s, claim_id = self._open(WORKER), 0.0, secrets.token_hex(8)
        while True:
            try:
                if self._stop.is_set() and store.overview().inflight == 0:
                    return
                if time.monotonic() > told_s + 1:
                    heartbeat(store, slots=SLOTS)
                    told_s = time.monotonic()
                # A call without an answer is repeated: the claim with the same id, and then the settles of its jobs.
                jobs = store.claim("w1", claim_id, MODEL, room=32, cells_free=10**9)
                if jobs:
                    store.settle_many([an_ending(job.held) for job in jobs], "w1")
                claim_id = secrets.token_hex(8)
            except StoreUnavailable:
                self._stop.wait(0.01)


def test_no_job_is_lost_or_doubled_while_a_slot_moves_in_a_flood(cluster: StoreCluster, settings: Settings) -> None:
    flood = Flood(cluster, replace(settings, max_inflight=5_000, max_queue_size=5_000, admission="bounds"))
    threads, moves = flood.threads(), 0
    for thread in threads:
        thread.start()
    began_s = time.monotonic()
    while time.monotonic() < began_s + SECONDS:
        moves += 1
        cluster.move(flood.prefix, cluster.nodes[moves % 3])
        threading.Event().wait(0.5)
    flood.stop()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    ids, times = [job_id for _, job_id in flood.acknowledged], sorted(at_s for at_s, _ in flood.acknowledged)
    longest_gap_s = max(after - before for before, after in pairwise(times))
    print(f"{len(ids) / (times[-1] - times[0]):.0f} jobs a second, {moves} moves, longest gap {longest_gap_s:.2f} s")
    assert len(set(ids)) == len(ids) == stat(flood.store, "admitted")
    assert stat(flood.store, "ended|succeeded") == len(ids)
    assert longest_gap_s < 1
    assert find_breaches(flood.store.client) == []

"""Tests that an acknowledged job survives a kill of the store's server, and a failover to a replica that lags."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.accounts.budgets import Budgets
from shared.accounts.tenants import Tenants
from shared.errors import StoreUnavailable
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import load
from shared.store import keys
from shared.store.connection import DOOR, open_client
from shared.store.store import Store
from tests.chaos.proxy import StoreProxy
from tests.support.budgets import MIDDLE_MS, at
from tests.support.builders import a_job, admitted, an_ending, claim_one, heartbeat, refused
from tests.support.processes import wait_for
from tests.support.store_servers import StoreServer

BOUNDS = {"PENSTOCK_ADMISSION": "bounds", "PENSTOCK_MAX_INFLIGHT": "1000", "PENSTOCK_MAX_QUEUE_SIZE": "1000"}


def a_store(server: StoreServer) -> Store:
    store = Store(open_client(server.url, name="penstock-test", timeouts=DOOR))
    store.configure(load(BOUNDS, None))
    heartbeat(store)
    return store


def lost(server: StoreServer, ids: list[str]) -> list[str]:
    return [job_id for job_id in ids if not server.client.exists(keys.rq_job(job_id))]


def test_a_killed_store_that_writes_before_it_answers_has_every_acknowledged_job(tmp_path: Path) -> None:
    with StoreServer(tmp_path, appendfsync="always") as server:
        store = a_store(server)
        ids = [admitted(store, a_job()) for _ in range(50)]
        server.process.kill()
        server.start()
        assert lost(server, ids) == []


def test_a_killed_store_has_every_job_that_was_acknowledged_before_its_last_write_to_the_disk(tmp_path: Path) -> None:
    """With everysec, the server may hold back what is younger than its last fsync while the disk is busy."""
    with StoreServer(tmp_path, appendfsync="everysec") as server:
        store = a_store(server)
        ids = [admitted(store, a_job()) for _ in range(50)]
        wait_for(lambda: server.client.info("persistence")["aof_buffer_length"] == 0, "the jobs to reach the file")
        server.process.kill()
        server.start()
        assert lost(server, ids) == []


def test_a_budget_and_what_is_used_of_it_survive_a_restart_of_the_store(tmp_path: Path) -> None:
    with StoreServer(tmp_path, appendfsync="always") as server:
        store = a_store(server)
        at(store, MIDDLE_MS)
        Tenants(store.client).set("blue", TenantPolicy(tokens_per_month=80))
        for _ in range(2):
            admitted(store, a_job())
        store.settle(an_ending(claim_one(store).held), "w1")
        before = Budgets(store.client).of_tenant("blue")
        server.process.kill()
        server.start()
        store = a_store(server)
        after = Budgets(store.client).of_tenant("blue")
        assert [(row.max_tokens, row.counted_tokens, row.reserved_tokens) for row in after] == [(80, 30, 30)]
        assert after == before
        assert refused(store, a_job()).value == 60


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[StoreServer, StoreServer, StoreProxy]]:
    """A primary, its replica, and the network between them."""
    with (
        StoreServer(tmp_path / "primary") as primary,
        StoreServer(tmp_path / "replica") as replica,
        StoreProxy(primary.port) as link,
    ):
        replica.follow(link.port)
        primary.wait_until_replicas_are_listed(1)
        yield primary, replica, link


def fail_over(primary: StoreServer, replica: StoreServer, link: StoreProxy) -> None:
    primary.process.kill()
    link.cut()
    wait_for(lambda: not replica.is_in_sync, "the replica to lose its primary")
    replica.promote()


def test_a_failover_loses_what_the_replica_had_not_received(pair: tuple[StoreServer, StoreServer, StoreProxy]) -> None:
    primary, replica, link = pair
    store = a_store(primary)
    before = [admitted(store, a_job()) for _ in range(5)]
    wait_for(lambda: lost(replica, before) == [], "the replica to have them")
    link.hold(held=True)
    late = [admitted(store, a_job()) for _ in range(5)]
    fail_over(*pair)
    assert lost(replica, before + late) == late


def test_a_failover_loses_no_job_that_a_replica_has_confirmed(
    pair: tuple[StoreServer, StoreServer, StoreProxy],
) -> None:
    primary, replica, link = pair
    store = a_store(primary)
    ids = [store.admit(a_job(), ack_replicas=1).id for _ in range(20)]
    link.hold(held=True)
    with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
        store.admit(a_job(), ack_replicas=1)
    fail_over(*pair)
    assert lost(replica, ids) == []

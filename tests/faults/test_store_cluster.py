"""Tests of cells in a cluster of real servers: each is on one node, and is found again if it moves or its node dies."""

import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from redis.client import Pipeline

from shared.accounts.tenants import Tenants
from shared.audit.invariants import Breach, find_breaches
from shared.cells.stored import StoredDirectory
from shared.errors import ConfigError, StoreUnavailable, StoreUnfit
from shared.jobs.states import JobState
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings, load
from shared.store import keys
from shared.store.clients.cluster import NodePool
from shared.store.clients.quick_client import execute_together
from shared.store.connection import DOOR, OPERATOR, Timeouts, open_blocking_client, open_client
from shared.store.preflight import check_fitness
from shared.store.redis_errors import store_faults
from shared.store.replies import Admitted
from shared.store.store import Store
from shared.store_fault import StoreFault
from tests.support.builders import MODEL, a_job, admitted, an_ending, claim, claim_one, heartbeat, stat, view_of
from tests.support.in_process import InProcess
from tests.support.kept_alive import keep_alive
from tests.support.processes import wait_for
from tests.support.store_cluster import StoreCluster
from tests.support.store_servers import StoreServer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreCluster]:
    """Three nodes."""
    with StoreCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cells(cluster: StoreCluster, settings) -> Iterator[list[Store]]:
    """One configured cell on each node. Afterwards the invariants hold, and the keys are gone."""
    yield from cells_of(cluster, settings)


def cells_of(cluster: StoreCluster, settings: Settings) -> Iterator[list[Store]]:
    stores = [Store(a_client(cluster, cluster.prefix_on(node))) for node in cluster.nodes[:3]]
    for store in stores:
        store.configure(settings)
        keep_alive(store)
    yield stores
    for store in stores:
        assert find_breaches(store.client) == []
        store.client.unlink(*store.client.keys("*"))
        store.client.close()


def a_client(cluster: StoreCluster, prefix: str, timeouts: Timeouts = OPERATOR) -> redis.Redis:
    return open_client(cluster.url, name="penstock-test", prefix=prefix, timeouts=timeouts)


def prefix_of(store: Store) -> str:
    return store.client.connection_pool.connection_kwargs["command_packer"].prefix


def run_jobs(store: Store, number: int) -> None:
    for _ in range(number):
        admitted(store, a_job())
        store.settle(an_ending(claim_one(store).held), "w1")


def test_each_cell_is_on_the_node_that_owns_its_slot_and_nowhere_else(cluster, cells):
    for store in cells:
        heartbeat(store)
        run_jobs(store, 3)
        assert check_fitness(store.client) == check_fitness(cells[0].client)
    for node in cluster.nodes[:3]:
        found = {key.split(b"}")[0] for key in node.client.keys("*")}
        assert found == {cluster.prefix_on(node).encode().split(b"}")[0]}


def test_a_script_for_a_cell_of_another_node_has_no_effect(cluster, cells):
    """A client of the wrong node does not get as far as the first command of the script."""
    (own, other) = (prefix_of(store) for store in cells[:2])
    with closing(open_client(f"redis://127.0.0.1:{cluster.owner(own).port}", name="any", prefix=other)) as client:
        with pytest.raises(StoreUnavailable, match=r"redis\+cluster://"), store_faults(client):
            Store(client).reap()
        assert cluster.owner(own).client.keys(f"{other}*") == []


def test_in_each_of_six_cells_the_bounds_hold_and_tenants_are_served_by_their_weights(cluster, settings):
    """All cells work at the same time, two on each node."""
    bounded = replace(settings, max_inflight=64, max_queue_size=40)

    def fill_and_serve(prefix: str) -> tuple[int, Counter[str], list[Breach]]:
        with closing(a_client(cluster, prefix)) as client:
            store = Store(client)
            store.configure(bounded)
            keep_alive(store)
            Tenants(client).set("heavy", TenantPolicy(weight=3))
            heartbeat(store, slots=4)
            answers = [
                store.admit(a_job(tenant, deadline_ms=600_000)) for _ in range(40) for tenant in ("heavy", "light")
            ]
            served: Counter[str] = Counter()
            for _ in range(32):
                job = claim_one(store)
                served[job.tenant] += 1
                store.settle(an_ending(job.held), "w1")
                heartbeat(store, slots=4)
            breaches = find_breaches(client)
            client.unlink(*client.keys("*"))
            return sum(isinstance(answer, Admitted) for answer in answers), served, breaches

    prefixes = [prefix for node in cluster.nodes for prefix in cluster.prefixes_on(node, 2)]
    with ThreadPoolExecutor(6) as pool:
        for admitted_jobs, served, breaches in pool.map(fill_and_serve, prefixes):
            assert 32 < admitted_jobs <= 64
            assert 22 <= served["heavy"] <= 26
            assert breaches == []


def test_every_way_to_send_commands_follows_a_slot_that_moves(cluster, cells):
    store, target = cells[1], cluster.nodes[2]
    client, prefix, home = store.client, prefix_of(store), cluster.owner(prefix_of(store))
    heartbeat(store)
    Tenants(client).set("blue", TenantPolicy(weight=2))

    def commands() -> list[tuple[str | bytes | int, ...]]:
        return [("GET", "penstock:mark"), ("TIME",), ("EXISTS", keys.config())]

    def read(pipe: Pipeline) -> None:
        pipe.get("penstock:none")
        pipe.multi()
        pipe.exists(keys.config())

    def pipeline(*, transaction: bool) -> list[object]:
        pipe = client.pipeline(transaction=transaction)
        pipe.exists(keys.config())
        pipe.time()
        pipe.lpop("penstock:none")
        return pipe.execute()[::2]

    ways = [
        lambda: execute_together(client, *commands())[2] == 1,
        lambda: client.transaction(read, keys.config()) == [1],
        lambda: pipeline(transaction=True) == [1, None],
        lambda: pipeline(transaction=False) == [1, None],
        lambda: client.hgetall(keys.config()) != {},
        lambda: dict(client.hscan_iter(keys.config())) != {},
        lambda: Tenants(client).set("blue", TenantPolicy(weight=3)) is not False,
        lambda: run_jobs(store, 1) is None,
    ]
    for number, works in enumerate(ways):
        cluster.move(prefix, (target, home)[number % 2])
        assert works(), number
    with client.client() as single:
        single.ping()
        cluster.move(prefix, target)
        assert single.exists(keys.config()) == 1
        cluster.move(prefix, home)


def test_a_blocked_read_follows_a_slot_that_moves(cluster, cells):
    store, target = cells[1], cluster.nodes[2]
    prefix, home = prefix_of(store), cluster.owner(prefix_of(store))
    rung = []
    reader = threading.Thread(target=lambda: rung.append(store.wait_for_work("w1", MODEL, timeout_s=5)))
    reader.start()
    wait_for(lambda: home.client.info("clients")["blocked_clients"] == 1, "a blocked reader")
    cluster.move(prefix, target)
    store.ring("w1")
    reader.join(20)
    assert len(rung) == 1
    cluster.move(prefix, home)


def test_no_job_is_lost_or_doubled_while_a_slot_moves_under_load(cluster, cells):
    store, target = cells[1], cluster.nodes[2]
    prefix, home = prefix_of(store), cluster.owner(prefix_of(store))
    ended: list[str] = []
    faults: list[Exception] = []
    stop = threading.Event()

    def work() -> None:
        own = Store(a_client(cluster, prefix))
        keep_alive(own)
        with closing(own.client):
            heartbeat(own, slots=64)
            while not stop.is_set():
                try:
                    admitted(own, a_job())
                    for job in claim(own):
                        own.append([(job.held, "word", 1)])
                        own.settle(an_ending(job.held), "w1")
                        ended.append(job.id)
                except StoreUnavailable as error:
                    faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(4):
        before = len(ended)
        wait_for(lambda before=before: len(ended) > before + 50, "jobs to end")
        cluster.move(prefix, (target, home)[number % 2])
    stop.set()
    for thread in threads:
        thread.join(20)
    assert faults == []
    assert len(ended) == len(set(ended))
    for job in claim(store, room=8):
        store.settle(an_ending(job.held), "w1")
        ended.append(job.id)
    assert {view_of(store, job_id).state for job_id in ended} == {JobState.SUCCEEDED}
    assert stat(store, "admitted") == len(ended)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:{}", "redis+cluster://127.0.0.1:{}"])
def test_a_start_with_settings_that_do_not_fit_a_cluster_ends_with_the_reason(cluster, url):
    url = url.format(cluster.nodes[0].port)
    if "cluster" in url:
        with pytest.raises(ConfigError, match=r"PENSTOCK_KEY_PREFIX='' has no hash tag"):
            load({"REDIS_URL": url}, None)
        with pytest.raises(ConfigError, match=r"a cluster needs a hash tag in PENSTOCK_KEY_PREFIX='a:'"):
            open_client(url, name="any", prefix="a:")
        return
    with closing(open_client(url, name="any", prefix="{c1}:")) as client, pytest.raises(StoreUnfit, match="cluster"):
        check_fitness(client)


def test_a_cell_whose_cluster_cannot_be_asked_is_away_for_the_reason_of_its_nodes(cluster, tmp_path):
    def away(url: str) -> StoreUnavailable:
        client = open_client(url, name="any", prefix="{c1}:", timeouts=DOOR)
        with closing(client), pytest.raises(StoreUnavailable) as away, store_faults(client):
            client.ping()
        return away.value

    assert away("redis+cluster://127.0.0.1:1,127.0.0.1:2").fault is StoreFault.UNREACHABLE
    port = cluster.nodes[0].port
    assert away(f"redis+cluster://who:ever@127.0.0.1:{port}").fault is StoreFault.PASSWORD_REFUSED
    with StoreServer(tmp_path / "alone") as server:
        assert "cluster support disabled" in str(away(f"redis+cluster://127.0.0.1:{server.port}"))


def test_a_warning_says_that_one_lost_node_would_stop_all_cells(cluster, cells):
    node = cluster.owner(prefix_of(cells[0]))
    assert not any("full-coverage" in warning for warning in check_fitness(cells[0].client))
    node.client.config_set("cluster-require-full-coverage", "yes")
    assert any("full-coverage is 'yes'" in warning for warning in check_fitness(cells[0].client))
    node.client.config_set("cluster-require-full-coverage", "no")


def test_the_user_of_deploy_reaches_its_cell_and_no_other(cluster, cells, tmp_path):
    own, other = (prefix_of(store) for store in cells[:2])
    make = [ROOT / "deploy" / "make_credentials.sh", ROOT / "deploy" / "users.acl", tmp_path, tmp_path, "store:1", own]
    subprocess.run(make, check=True)
    user = (tmp_path / "users.acl").read_text().splitlines()[1].split()[1:]
    password = (tmp_path / "redis-url").read_text().split("@")[0].rpartition(":")[2]
    for node in cluster.nodes:
        node.client.execute_command("ACL", "SETUSER", *user)
    url = cluster.url.replace("://", f"://penstock:{password}@")
    with closing(open_client(url, name="any", prefix=own, timeouts=OPERATOR)) as client:
        store = Store(client)
        heartbeat(store)
        run_jobs(store, 1)
        assert find_breaches(client) == []
    with closing(open_client(url, name="any", prefix=other, timeouts=OPERATOR)) as client:
        for command in ("GET", "EXISTS"):
            with pytest.raises(redis.ResponseError, match=r"(?i)permission"):
                client.execute_command(command, keys.config())
        with pytest.raises(redis.ResponseError, match=r"(?i)permission"):
            Store(client).overview()


def test_each_cell_of_a_cluster_keeps_a_copy_of_the_directory_also_when_its_slot_has_moved(
    cluster, cells, monkeypatch, tmp_path
):
    own, other = (prefix_of(store) for store in cells[:2])
    monkeypatch.setenv("PENSTOCK_KEY_PREFIX", own)
    penstock = InProcess(monkeypatch, tmp_path, cluster.url)
    added = penstock("cells", "add", "c2", cluster.url, "--prefix", other)
    assert added.returncode == 0, added.stderr
    cluster.move(other, cluster.owner(own))
    assert penstock("cells", "spread", "2").returncode == 0
    copies = [StoredDirectory(store.client).read() for store in cells[:2]]
    assert copies[0] == copies[1]
    assert [(cell.prefix, cell.url) for cell in copies[0].cells.values()] == [(own, cluster.url), (other, cluster.url)]


def test_blocking_clients_share_what_is_known_of_the_owner(cluster):
    with closing(a_client(cluster, "{c1}:")) as client:
        blocking = open_blocking_client(client, block_s=1.0)
        assert isinstance(blocking.connection_pool, NodePool)
        assert blocking.connection_pool.owner is client.connection_pool.owner
        blocking.close()


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[StoreCluster]:
    """A cluster whose first node has a replica, which is promoted three seconds after the node was killed."""
    with StoreCluster(tmp_path / "cluster", replicas=1, node_timeout_ms=3_000) as cluster:
        yield cluster


def test_a_cell_whose_node_is_killed_is_served_by_the_replica_and_the_others_notice_nothing(doomed, settings):
    for lost, other, _ in cells_of(doomed, settings):
        for store in (lost, other):
            heartbeat(store)
            run_jobs(store, 1)
        job_id = admitted(lost, a_job(deadline_ms=600_000))
        node, replica = doomed.nodes[0], doomed.nodes[3]
        with lost.client.client() as single:
            single.set("penstock:notices", "1", ex=600)
            wait_for(lambda single=single: single.wait(1, 100) == 1, "the replica to have the job")
        node.process.kill()
        with pytest.raises(StoreUnavailable) as away:
            lost.overview()
        assert away.value.fault in {StoreFault.UNREACHABLE, StoreFault.TIMEOUT}

        def is_back(lost: Store = lost, other: Store = other) -> bool:
            run_jobs(other, 1)
            try:
                lost.overview()
            except StoreUnavailable:
                return False
            return True

        wait_for(is_back, "the replica to take over", timeout_s=60)
        assert lost.client.connection_pool.owner.address == ("127.0.0.1", replica.port)
        assert view_of(lost, job_id).state is JobState.QUEUED
        heartbeat(lost)
        lost.settle(an_ending(claim_one(lost).held), "w1")

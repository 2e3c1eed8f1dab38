"""Tests of two cells in one store: the same steps leave the same keys in each, and no cell reads or changes another."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import redis
from rq import Queue, Worker
from rq.registry import FinishedJobRegistry
from rq.serializers import JSONSerializer

from shared.accounts.api_keys import ApiKeys
from shared.accounts.tenants import Tenants
from shared.audit.invariants import find_breaches
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.connection import open_client
from shared.store.keys import queue_name
from shared.store.store import Store
from tests.support.builders import (
    MODEL,
    a_heartbeat,
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim_one,
    heartbeat,
)
from workers.rqworker import RqWorker

pytestmark = [pytest.mark.rq, pytest.mark.no_prefix]

PREFIXES = ("", "{c7}:", "eu.{c8}:")


@pytest.fixture
def cells(redis_client: redis.Redis, store_url: str, settings) -> Iterator[dict[str, Store]]:
    """Three configured cells of the session's store, by their prefixes. The invariants hold in each at the end."""
    with ExitStack() as stack:
        found = {}
        for prefix in PREFIXES:
            client = stack.enter_context(open_client(store_url, name="penstock-test", prefix=prefix))
            found[prefix] = Store(client)
            found[prefix].configure(settings)
        yield found
        for store in found.values():
            assert find_breaches(store.client) == []


def live_through(store: Store, tenant: str) -> Iterator[None]:
    """Do what doors, workers and operators do, in steps between which another cell may act."""
    ApiKeys(store.client).create(tenant, label="test")
    Tenants(store.client).set(tenant, TenantPolicy(weight=2))
    worker = RqWorker("w1", store.client, serve=lambda: True)
    worker.register_birth()
    heartbeat(store)
    yield
    ids = [admitted(store, a_job(tenant, idem_digest=f"once{i}", supersede_digest=f"new{i}")) for i in range(4)]
    yield
    held = claim_one(store).held
    store.append([(held, "some", 1)])
    assert [fields["type"] for _, fields in store.read_events({held.id: "0"}, block_ms=1)[held.id]] == [
        "started",
        "token",
    ]
    yield
    store.ring("w1")
    assert not store.wait_for_work("w1", MODEL, timeout_s=1).pool
    store.settle_many([an_ending(held)], "w1")
    store.cancel(ids[2])
    yield
    second = claim_one(store).held
    store.release("w1", [second])
    advance_clock(store, 100_000)
    yield
    store.reap()
    store.renew(a_heartbeat(), [])
    store.sweep("inflight", 0)
    store.reconcile(tenant, MODEL)
    yield
    worker.register_death()
    store.farewell("w1", MODEL)


def others(redis_client: redis.Redis, prefix: str) -> dict[bytes, bytes | None]:
    """Return every key of the other cells, byte for byte."""
    found = sorted(redis_client.keys("*"))
    mine = tuple(f"{prefix}{room}".encode() for room in ("penstock:", "rq:"))
    return {key: redis_client.dump(key) for key in found if not key.startswith(mine)}


def test_no_step_in_one_cell_reads_or_changes_a_key_of_another(cells, redis_client):
    lives = {prefix: live_through(store, "blue") for prefix, store in cells.items()}
    while lives:
        for prefix, life in list(lives.items()):
            before = others(redis_client, prefix)
            if next(life, "over") == "over":
                del lives[prefix]
            assert others(redis_client, prefix) == before
    families = {
        prefix: {key.decode().removeprefix(prefix).rsplit(":", 1)[0] for key in redis_client.keys(f"{prefix}[pr]*")}
        for prefix in PREFIXES
    }
    assert families[""] == families["{c7}:"] == families["eu.{c8}:"]
    assert len(families[""]) > 15


def test_rq_lists_the_queues_jobs_and_workers_of_a_cell_through_its_client(cells):
    for prefix, store in cells.items():
        tenant = f"t{len(prefix)}"
        RqWorker(f"worker-{tenant}", store.client, serve=lambda: True).register_birth()
        heartbeat(store)
        first, second = (admitted(store, a_job(tenant)) for _ in range(2))
        store.settle(an_ending(claim_one(store).held), "w1")
        (queue,) = Queue.all(connection=store.client, serializer=JSONSerializer)
        assert (queue.name, queue.get_job_ids()) == (queue_name(tenant, MODEL), [second])
        assert FinishedJobRegistry(queue=queue).get_job_ids() == [first]
        found = Worker.all(connection=store.client, serializer=JSONSerializer)
        assert f"worker-{tenant}" in {worker.name for worker in found}
        assert {worker.name for worker in found} <= {f"worker-{tenant}", "w1"}


#: RQ's own objects in a process of their own, because RQ reads its setting when it is imported.
STOCK_RQ = """
import json, sys, redis
from rq import Queue, Worker
from rq.serializers import JSONSerializer
client = redis.Redis.from_url(sys.argv[1], protocol=2)
queues = Queue.all(connection=client, serializer=JSONSerializer)
workers = Worker.all(connection=client, serializer=JSONSerializer)
print(json.dumps([{queue.name: queue.get_job_ids() for queue in queues}, [worker.name for worker in workers]]))
"""


def test_rqs_own_tools_read_a_cell_with_rqs_own_setting(cells, store_url):
    pytest.importorskip("rq.defaults").__dict__.get("RQ_KEY_PREFIX") or pytest.skip("RQ 2 has no setting for a prefix")
    store = cells["{c7}:"]
    RqWorker("w1", store.client, serve=lambda: True).register_birth()
    heartbeat(store)
    job_id = admitted(store, a_job())
    environ = os.environ | {"RQ_KEY_PREFIX": "{c7}:rq"}
    command = [sys.executable, "-c", STOCK_RQ, store_url]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [{queue_name("blue", MODEL): [job_id]}, ["w1"]]
    store.cancel(job_id)


def test_keys_that_a_script_moves_out_of_the_way_stay_in_their_cell(cells, redis_client):
    store = cells["{c7}:"]
    store.client.set(keys.tenants(), "no set", ex=60)
    heartbeat(store)
    admitted(store, a_job())
    whole = f"{{c7}}:{keys.tenants()}"
    assert redis_client.get(f"{{c7}}:{keys.spoiled(whole)}") == b"no set"
    assert store.sweep("inflight", 0).notices == [f"type {whole}"]

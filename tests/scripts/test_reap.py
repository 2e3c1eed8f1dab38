"""Tests of the script `reap`: it ends late queued jobs, takes back lost jobs and drops unused records."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.job import ClaimRef
from shared.jobs.states import JobState
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.keys import queue_name
from shared.store.replies import Reaped, Rings
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim,
    claim_one,
    contents,
    heartbeat,
    pass_time,
    reconfigure,
    stat,
    view_of,
)

QUEUE = queue_name("blue", MODEL)


def test_reap_changes_nothing_when_nothing_is_due(store):
    heartbeat(store)
    admitted(store, a_job())
    admitted(store, a_job())
    claim_one(store)
    before = contents(store)
    answer = store.reap()
    assert answer.moved == 0
    assert contents(store) == before


def test_reap_of_an_empty_store_moves_nothing(store):
    assert store.reap() == Reaped(0, 0, 0, 0, None)


def test_reap_returns_the_time_until_the_next_job_is_due(store):
    heartbeat(store)
    admitted(store, a_job(deadline_ms=40_000))
    assert 39_000 < store.reap().due_in_ms <= 40_000
    admitted(store, a_job(deadline_ms=50_000, poll_grace_ms=20_000))
    assert 19_000 < store.reap().due_in_ms <= 20_000
    claim_one(store)
    assert 14_000 < store.reap().due_in_ms <= 15_000


def test_a_queued_job_expires_at_its_start_deadline(store):
    """Its deadline is far away, but a client that waits for the first token has left by its start deadline."""
    heartbeat(store)
    job_id = admitted(store, a_job(deadline_ms=600_000, start_within_ms=30_000))
    assert 29_000 < store.reap().due_in_ms <= 30_000
    advance_clock(store, 29_900)
    assert store.reap().moved == 0
    advance_clock(store, 100)
    assert store.reap().expired == 1
    view = view_of(store, job_id)
    assert (view.state, view.code, view.stage) == (JobState.EXPIRED, "deadline_exceeded", "queue")


def test_a_queued_job_expires_at_its_deadline_whatever_its_position(store):
    """The second job has the earlier deadline; reap ends it without waiting until it is at the head."""
    heartbeat(store)
    head = admitted(store, a_job(latest_start_ms=1_000))
    deep = admitted(store, a_job(deadline_ms=5_000, latest_start_ms=5_000))
    advance_clock(store, 4_900)
    assert store.reap().expired == 0
    advance_clock(store, 200)
    assert store.reap().expired == 1
    view = view_of(store, deep)
    assert (view.state, view.code, view.stage, view.text, view.finish_reason) == (
        JobState.EXPIRED,
        "deadline_exceeded",
        "queue",
        None,
        "",
    )
    assert view_of(store, head).state is JobState.QUEUED


def test_reap_does_not_expire_a_running_job_whose_lease_is_valid(store):
    heartbeat(store)
    admitted(store, a_job(deadline_ms=1_000))
    held = claim_one(store).held
    advance_clock(store, 1_900)
    heartbeat(store, "w1", held)
    assert store.reap().moved == 0
    assert view_of(store, held.id).state is JobState.RUNNING


def test_queued_jobs_expire_even_while_reap_takes_no_lease_back(store):
    heartbeat(store)
    late = admitted(store, a_job(deadline_ms=10_000))
    advance_clock(store, 20_000)
    assert store.reap().expired == 1
    assert view_of(store, late).state is JobState.EXPIRED


def test_a_queued_job_that_no_client_polls_is_abandoned(store):
    heartbeat(store)
    job_id = admitted(store, a_job(poll_grace_ms=3_000))
    advance_clock(store, 2_000)
    store.touch(job_id)
    advance_clock(store, 2_000)
    assert store.reap().canceled == 0
    advance_clock(store, 1_100)
    assert store.reap().canceled == 1
    assert (view_of(store, job_id).state, view_of(store, job_id).code) == (JobState.CANCELED, "abandoned")


def test_a_running_job_that_no_client_polls_is_flagged_as_abandoned(store):
    heartbeat(store)
    admitted(store, a_job(poll_grace_ms=1_000))
    held = claim_one(store).held
    advance_clock(store, 1_100)
    answer = store.reap()
    assert answer.moved == 0
    assert store.wait_for_work("w1", MODEL, timeout_s=1) == Rings(canceled=[held.id])
    assert heartbeat(store, "w1", held).canceled == [held.id]
    store.settle(an_ending(held), "w1")
    assert view_of(store, held.id).code == "abandoned"
    assert store.client.exists(keys.polls()) == 0


def test_one_reap_moves_at_most_sixty_four_jobs_of_each_kind(store, settings):
    reconfigure(store, settings, max_queue_size=300, max_inflight=300)
    heartbeat(store)
    for _ in range(70):
        admitted(store, a_job(deadline_ms=1_000))
    advance_clock(store, 1_100)
    first, second, third = store.reap(), store.reap(), store.reap()
    assert (first.expired, first.due_in_ms) == (64, 0)
    assert (second.expired, second.due_in_ms) == (6, None)
    assert third.moved == 0


def test_concurrent_reaps_move_each_job_once(store, settings):
    reconfigure(store, settings, max_queue_size=300, max_inflight=300)
    heartbeat(store)
    for _ in range(100):
        admitted(store, a_job(deadline_ms=600_000))
    assert sum(len(claim(store, room=50, cells_free=100_000)) for _ in range(2)) == 100
    for _ in range(50):
        admitted(store, a_job(deadline_ms=16_000))
    pass_time(store, 16_500)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: store.reap(), range(16)))
    assert sum(answer.requeued for answer in answers) == 100
    assert sum(answer.expired for answer in answers) == 50
    assert stat(store, "reclaimed") == 100
    assert stat(store, "ended|expired") == 50


def test_a_silent_worker_is_forgotten_after_a_minute(store):
    heartbeat(store)
    store.client.sadd("rq:workers", "rq:worker:w1")
    advance_clock(store, 59_000)
    store.reap()
    assert [worker.name for worker in store.snapshot().workers] == ["w1"]
    advance_clock(store, 2_000)
    store.reap()
    assert store.snapshot().workers == []
    assert store.client.exists("rq:workers", keys.pool(MODEL)) == 0


def test_a_tenant_without_stored_data_or_policy_is_no_longer_listed(store):
    heartbeat(store)
    Tenants(store.client).set("kept", TenantPolicy(weight=2))
    Tenants(store.client).set("silent", TenantPolicy(weight=2))
    for tenant in ("gone", "kept"):
        admitted(store, a_job(tenant))
        store.settle(an_ending(claim_one(store).held), "w1")
    advance_clock(store, 90_000_000)
    admitted_ms = {entry.name: entry.last_admission_ms for entry in Tenants(store.client).list()}
    store.reap()
    assert {entry.name for entry in Tenants(store.client).list()} == {"gone", "kept", "silent"}
    advance_clock(store, 3_600_000)
    for _ in range(2):
        store.reap()
    listed = {entry.name: entry.last_admission_ms for entry in Tenants(store.client).list()}
    assert listed == {"kept": admitted_ms["kept"], "silent": None}
    heartbeat(store)
    again = admitted(store, a_job("kept"))
    assert Tenants(store.client).list()[0].last_admission_ms == view_of(store, again).admitted_ms
    store.cancel(again)
    Tenants(store.client).remove("silent")
    assert [entry.name for entry in Tenants(store.client).list()] == ["kept"]


def test_an_idle_queue_leaves_rqs_set_of_queues_when_its_last_result_has_expired(store, settings):
    reconfigure(store, settings, result_ttl_s=100)
    heartbeat(store)
    admitted(store, a_job(deadline_ms=10_000))
    store.settle(an_ending(claim_one(store).held), "w1")
    advance_clock(store, 99_000)
    store.reap()
    assert store.client.smembers("rq:queues") == {f"rq:queue:{QUEUE}".encode()}
    advance_clock(store, 2_000)
    store.reap()
    assert store.client.exists("rq:queues", keys.queues()) == 0


def test_a_queue_with_an_inflight_job_stays_in_rqs_set_of_queues(store, settings):
    reconfigure(store, settings, result_ttl_s=1)
    heartbeat(store)
    admitted(store, a_job(deadline_ms=1_000))
    held = claim_one(store).held
    advance_clock(store, 1_900)
    heartbeat(store, "w1", held)
    advance_clock(store, 1_900)
    store.reap()
    assert store.client.exists("rq:queues") == 1
    store.settle(an_ending(held), "w1")
    advance_clock(store, 1_500)
    store.reap()
    assert store.client.exists("rq:queues") == 0


def test_reap_frees_the_places_of_a_queued_job_without_a_record(store):
    heartbeat(store)
    job_id = admitted(store, a_job(poll_grace_ms=1_000))
    store.client.delete(keys.rq_job(job_id))
    pass_time(store, 61_000)
    assert store.reap().moved == 0
    assert store.client.exists(keys.payload(job_id), keys.deadlines(), keys.inflight(), keys.polls()) == 0
    assert stat(store, "ended|forgotten") == 1
    assert claim(store) == []
    assert store.client.exists(keys.order(QUEUE), f"rq:queue:{QUEUE}", keys.active(MODEL)) == 0
    # The record said what was reserved for the job in its tenant's budget, so only a recount can give that back.
    store.reconcile("blue", MODEL)


def test_reap_works_when_memory_is_full(store, memory_is_full):
    heartbeat(store)
    late = admitted(store, a_job("a", deadline_ms=10_000))
    admitted(store, a_job("b"))
    lapsed = store.claim("w1", "c1", MODEL, room=2, cells_free=4_096)
    store.release("w1", [ClaimRef(job.id, job.token) for job in lapsed if job.id == late])
    pass_time(store, 16_500)
    with memory_is_full():
        answer = store.reap()
    assert (answer.expired, answer.requeued) == (1, 1)


@pytest.mark.parametrize("family", ["events", "payload", "rq_results"])
def test_a_key_of_the_wrong_type_does_not_stop_reap(store, family):
    heartbeat(store)
    job_id = admitted(store, a_job())
    claim_one(store)
    key = keys.TABLE[family](job_id)
    store.client.delete(key)
    store.client.sadd(key, "foreign")
    pass_time(store, 16_500)
    assert store.reap().requeued == 1
    advance_clock(store, 60_000)
    assert store.reap().expired == 1


@pytest.mark.parametrize("score", ["inf", "1e300"])
def test_nothing_is_due_because_of_a_poll_deadline_that_is_no_time(store, score):
    store.client.zadd(keys.polls(), {"unknown": score})
    assert store.reap().due_in_ms is None
    store.client.delete(keys.polls())

"""reap: ends what is late in the queue, takes back what no lease holds, forgets who is long gone."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from shared.jobs.job import Held
from shared.jobs.states import JobState
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.keys import queue_name
from shared.store.replies import Reaped
from shared.store.tenants import Tenants
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    an_ending,
    beat,
    claim,
    claim_one,
    contents,
    pass_time,
    reconfigure,
    seen,
    shift,
    stat,
)

QUEUE = queue_name("blue", MODEL)


def test_with_nothing_due_nothing_moves(store):
    beat(store)
    admitted(store, a_job())
    admitted(store, a_job())
    claim_one(store)
    before = contents(store)
    answer = store.reap()
    assert answer.moved == 0
    assert contents(store) == before


def test_an_empty_store_has_nothing_due(store):
    assert store.reap() == Reaped(0, 0, 0, 0, None)


def test_the_answer_tells_when_something_is_due_next(store):
    beat(store)
    admitted(store, a_job(deadline_ms=40_000))
    assert 39_000 < store.reap().due_in_ms <= 40_000
    admitted(store, a_job(deadline_ms=50_000, poll_grace_ms=20_000))
    assert 19_000 < store.reap().due_in_ms <= 20_000
    claim_one(store)
    assert 14_000 < store.reap().due_in_ms <= 15_000


def test_a_job_expires_in_the_queue_when_its_first_token_would_come_too_late(store):
    """Its deadline is far, and nobody is there to claim it: whoever waits for its stream has left by then."""
    beat(store)
    job_id = admitted(store, a_job(deadline_ms=600_000, start_within_ms=30_000))
    assert 29_000 < store.reap().due_in_ms <= 30_000
    shift(store, 29_900)
    assert store.reap().moved == 0
    shift(store, 100)
    assert store.reap().expired == 1
    view = seen(store, job_id)
    assert (view.state, view.code, view.stage) == (JobState.EXPIRED, "deadline_exceeded", "queue")


def test_a_job_expires_in_the_queue_at_its_time_wherever_it_stands(store):
    """The one behind has less patience than its latest start would say; the reaper does not wait for its turn."""
    beat(store)
    head = admitted(store, a_job(latest_start_ms=1_000))
    deep = admitted(store, a_job(deadline_ms=5_000, latest_start_ms=5_000))
    shift(store, 4_900)
    assert store.reap().expired == 0
    shift(store, 200)
    assert store.reap().expired == 1
    view = seen(store, deep)
    assert (view.state, view.code, view.stage, view.text, view.finish_reason) == (
        JobState.EXPIRED,
        "deadline_exceeded",
        "queue",
        None,
        "",
    )
    assert seen(store, head).state is JobState.QUEUED


def test_a_running_job_whose_lease_holds_is_never_expired_by_the_reaper(store):
    beat(store)
    admitted(store, a_job(deadline_ms=1_000))
    held = claim_one(store).held
    shift(store, 1_900)
    beat(store, "w1", held)
    assert store.reap().moved == 0
    assert seen(store, held.id).state is JobState.RUNNING


def test_deadlines_are_kept_while_leases_are_held(store):
    beat(store)
    late = admitted(store, a_job(deadline_ms=10_000))
    shift(store, 20_000)
    assert store.reap().expired == 1
    assert seen(store, late).state is JobState.EXPIRED


def test_a_waiting_job_that_nobody_polls_is_abandoned(store):
    beat(store)
    job_id = admitted(store, a_job(poll_grace_ms=3_000))
    shift(store, 2_000)
    store.touch(job_id)
    shift(store, 2_000)
    assert store.reap().canceled == 0
    shift(store, 1_100)
    assert store.reap().canceled == 1
    assert (seen(store, job_id).state, seen(store, job_id).code) == (JobState.CANCELED, "abandoned")


def test_a_running_job_that_nobody_polls_is_flagged_as_abandoned(store):
    beat(store)
    admitted(store, a_job(poll_grace_ms=1_000))
    held = claim_one(store).held
    shift(store, 1_100)
    answer = store.reap()
    assert answer.moved == 0
    assert store.wait_for_work("w1", MODEL, timeout_s=1) == (False, [held.id])
    assert beat(store, "w1", held).canceled == [held.id]
    store.settle(an_ending(held), "w1")
    assert seen(store, held.id).code == "abandoned"
    assert store.client.exists(keys.polls()) == 0


def test_at_most_sixty_four_of_each_kind_are_moved_in_a_call(store, settings):
    reconfigure(store, settings, max_queue_size=300, max_inflight=300)
    beat(store)
    for _ in range(70):
        admitted(store, a_job(deadline_ms=1_000))
    shift(store, 1_100)
    first, second, third = store.reap(), store.reap(), store.reap()
    assert (first.expired, first.due_in_ms) == (64, 0)
    assert (second.expired, second.due_in_ms) == (6, None)
    assert third.moved == 0


def test_two_reapers_at_once_move_each_job_once(store, settings):
    reconfigure(store, settings, max_queue_size=300, max_inflight=300)
    beat(store)
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
    beat(store)
    store.client.sadd("rq:workers", "rq:worker:w1")
    shift(store, 59_000)
    store.reap()
    assert [worker.name for worker in store.snapshot().workers] == ["w1"]
    shift(store, 2_000)
    store.reap()
    assert store.snapshot().workers == []
    assert store.client.exists("rq:workers", keys.pool(MODEL)) == 0


def test_a_tenant_of_which_nothing_is_kept_any_more_is_no_longer_listed(store):
    beat(store)
    Tenants(store.client).set("kept", TenantPolicy(weight=2))
    Tenants(store.client).set("silent", TenantPolicy(weight=2))
    for tenant in ("gone", "kept"):
        admitted(store, a_job(tenant))
        store.settle(an_ending(claim_one(store).held), "w1")
    shift(store, 90_000_000)
    admitted_ms = {entry.name: entry.last_admission_ms for entry in Tenants(store.client).list()}
    store.reap()
    assert {entry.name for entry in Tenants(store.client).list()} == {"gone", "kept", "silent"}
    shift(store, 3_600_000)
    for _ in range(2):
        store.reap()
    listed = {entry.name: entry.last_admission_ms for entry in Tenants(store.client).list()}
    assert listed == {"kept": admitted_ms["kept"], "silent": None}
    beat(store)
    again = admitted(store, a_job("kept"))
    assert Tenants(store.client).list()[0].last_admission_ms == seen(store, again).admitted_ms
    store.cancel(again)
    Tenants(store.client).remove("silent")
    assert [entry.name for entry in Tenants(store.client).list()] == ["kept"]


def test_a_quiet_queue_leaves_rqs_queues_when_nothing_of_it_can_be_read(store, settings):
    reconfigure(store, settings, result_ttl_s=100)
    beat(store)
    admitted(store, a_job(deadline_ms=10_000))
    store.settle(an_ending(claim_one(store).held), "w1")
    shift(store, 99_000)
    store.reap()
    assert store.client.smembers("rq:queues") == {f"rq:queue:{QUEUE}".encode()}
    shift(store, 2_000)
    store.reap()
    assert store.client.exists("rq:queues", keys.queues()) == 0


def test_a_queue_in_which_something_waits_or_runs_is_not_quiet(store, settings):
    reconfigure(store, settings, result_ttl_s=1)
    beat(store)
    admitted(store, a_job(deadline_ms=1_000))
    held = claim_one(store).held
    shift(store, 1_900)
    beat(store, "w1", held)
    shift(store, 1_900)
    store.reap()
    assert store.client.exists("rq:queues") == 1
    store.settle(an_ending(held), "w1")
    shift(store, 1_500)
    store.reap()
    assert store.client.exists("rq:queues") == 0


def test_places_of_a_waiting_job_without_a_record_come_free(store):
    beat(store)
    job_id = admitted(store, a_job(poll_grace_ms=1_000))
    store.client.delete(keys.rq_job(job_id))
    pass_time(store, 61_000)
    assert store.reap().moved == 0
    assert store.client.exists(keys.payload(job_id), keys.deadlines(), keys.inflight(), keys.polls()) == 0
    assert stat(store, "ended|forgotten") == 1
    assert claim(store) == []
    assert store.client.exists(keys.order(QUEUE), f"rq:queue:{QUEUE}", keys.active(MODEL)) == 0


def test_reaping_goes_on_without_memory(store, memory_is_full):
    beat(store)
    late = admitted(store, a_job("a", deadline_ms=10_000))
    admitted(store, a_job("b"))
    lapsed = store.claim("w1", "c1", MODEL, room=2, cells_free=4_096)
    store.release("w1", [Held(job.id, job.token) for job in lapsed if job.id == late])
    pass_time(store, 16_500)
    with memory_is_full():
        answer = store.reap()
    assert (answer.expired, answer.requeued) == (1, 1)


@pytest.mark.parametrize("family", ["events", "payload", "rq_results"])
def test_a_key_of_another_type_stops_no_reaper(store, family):
    beat(store)
    job_id = admitted(store, a_job())
    claim_one(store)
    key = keys.BY_NAME[family].prefix + job_id
    store.client.delete(key)
    store.client.sadd(key, "foreign")
    pass_time(store, 16_500)
    assert store.reap().requeued == 1
    shift(store, 60_000)
    assert store.reap().expired == 1

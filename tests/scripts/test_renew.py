"""renew: a worker's heartbeat; keeps exactly the leases it names, and tells what it lost."""

import pytest

from shared.jobs.job import Held, Usage
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.tenants import Tenants
from tests.support.builders import (
    MODEL,
    a_beat,
    a_job,
    admitted,
    an_ending,
    beat,
    claim,
    claim_one,
    pass_time,
    reconfigure,
    seen,
    shift,
)


def lease_end_ms(store, job_id: str) -> float:
    return store.client.zscore(keys.leases(), job_id)


def test_a_beat_makes_a_worker_live_and_shows_what_it_says_of_itself(store):
    facts = {"device": "cuda:0", "rate_wt_s": 812.5, "pid": 7, "seen_us": 1_234_567_890_123_456}
    beat(store, slots=8, slots_busy=3, cells=2_048, cells_free=1_000, facts=facts, draining=True)
    (view,) = store.snapshot().workers
    assert (view.name, view.model, view.live, view.draining) == ("w1", MODEL, True, True)
    assert (view.slots, view.slots_busy, view.cells, view.cells_free) == (8, 3, 2_048, 1_000)
    assert view.facts == {"device": "cuda:0", "rate_wt_s": "812.5", "pid": "7", "seen_us": "1234567890123456"}
    assert store.snapshot().models == [MODEL]


def test_leases_that_are_named_are_extended_and_others_lapse(store, settings):
    reconfigure(store, settings, lease_ms=3_000)
    beat(store)
    for _ in range(2):
        admitted(store, a_job())
    kept, dropped = claim(store, room=2)
    shift(store, 1_500)
    before = lease_end_ms(store, dropped.id)
    assert beat(store, "w1", kept.held).lost == []
    assert lease_end_ms(store, kept.id) >= before + 1_500
    assert lease_end_ms(store, dropped.id) == before
    shift(store, 1_600)
    assert store.reap().requeued == 1
    assert beat(store, "w1", kept.held, dropped.held).lost == [dropped.id]


@pytest.mark.parametrize("held", [Held("nobody", "c"), "another token", "another worker"])
def test_what_a_worker_does_not_hold_is_told_as_lost_and_stays_as_it_is(store, held):
    beat(store)
    admitted(store, a_job())
    job = claim_one(store)
    worker = "w1"
    if held == "another token":
        held = Held(job.id, "stale")
    elif held == "another worker":
        held, worker = job.held, "w2"
    before = lease_end_ms(store, job.id)
    shift(store, 500)
    assert beat(store, worker, held).lost == [held.id]
    assert lease_end_ms(store, job.id) == before


def test_an_ended_job_is_told_as_lost(store):
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.settle(an_ending(held), "w1")
    assert beat(store, "w1", held).lost == [held.id]


def test_a_reclaimed_job_is_lost_to_its_first_holder_and_kept_by_its_second(store):
    beat(store)
    admitted(store, a_job())
    first = claim_one(store).held
    pass_time(store, 16_500)
    store.reap()
    second = claim_one(store, "w2").held
    assert beat(store, "w1", first).lost == [first.id]
    assert beat(store, "w2", second).lost == []


def test_a_cancel_is_told_again_with_every_beat(store):
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.cancel(held.id)
    for _ in range(2):
        answer = beat(store, "w1", held)
        assert (answer.canceled, answer.lost) == ([held.id], [])


def test_a_beat_names_any_number_of_jobs_at_once(store, settings):
    reconfigure(store, settings, max_queue_size=100, max_inflight=100)
    beat(store)
    for _ in range(60):
        admitted(store, a_job())
    held = [job.held for job in claim(store, room=60, cells_free=100_000)]
    assert len(held) == 60
    for job in held[:30]:
        store.cancel(job.id)
    answer = beat(store, "w1", *held, Held("x", "y"))
    assert (sorted(answer.canceled), answer.lost) == (sorted(job.id for job in held[:30]), ["x"])


def test_a_worker_is_asked_to_drain_alone_or_with_all(store):
    assert not beat(store).drain
    store.client.hset(keys.worker("w1"), "drain_asked", "1")
    assert beat(store).drain
    assert not beat(store, "w2").drain
    store.client.hset(keys.config(), "draining", "1")
    assert beat(store, "w2").drain


def test_a_worker_unknown_to_rq_is_told_so_and_makes_no_record_there(store):
    assert beat(store, facts={"rq_state": "busy"}).unknown_to_rq
    assert store.client.exists("rq:worker:w1") == 0


def test_what_begins_with_rq_goes_to_rqs_record_of_the_worker(store):
    store.client.hset("rq:worker:w1", "birth", "2026-01-01T00:00:00.000000Z")
    assert not beat(store, facts={"rq_state": "busy", "device": "cpu"}).unknown_to_rq
    record = store.client.hgetall("rq:worker:w1")
    assert record[b"state"] == b"busy"
    assert record[b"last_heartbeat"].endswith(b"Z")
    assert b"device" not in record
    assert store.client.pttl("rq:worker:w1") > 100_000
    assert store.snapshot().workers[0].facts == {"device": "cpu"}


def test_rqs_one_current_job_is_the_first_that_the_worker_holds(store):
    beat(store)
    store.client.hset("rq:worker:w1", "birth", "2026-01-01T00:00:00.000000Z")
    for _ in range(2):
        admitted(store, a_job())
    held = [job.held for job in claim(store, room=2)]
    beat(store, "w1", *held)
    assert store.client.hget("rq:worker:w1", "current_job") == held[0].id.encode()
    beat(store, "w1")
    assert store.client.hget("rq:worker:w1", "current_job") is None


def test_a_worker_silent_for_a_minute_leaves_its_pool_with_the_next_beat_of_another(store):
    """Its own hash dies at the same moment, so nothing else would know in which pool to look."""
    beat(store)
    shift(store, 61_000)
    store.client.delete(keys.worker("w1"))
    beat(store, "w2")
    assert store.client.zrange(keys.pool(MODEL), 0, -1) == [b"w2"]


def test_automatic_bounds_count_the_live_workers_and_no_others(store):
    beat(store, slots=10)
    shift(store, 4_000)
    beat(store, "w2", slots=30)
    assert store.client.hget(keys.config(), "live_slots") == b"40"
    shift(store, 1_500)
    beat(store, "w2", slots=30)
    assert store.client.hget(keys.config(), "live_slots") == b"30"


def test_beats_go_on_without_memory(store, memory_is_full):
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    before = lease_end_ms(store, held.id)
    shift(store, 1_000)
    with memory_is_full():
        assert beat(store, "w1", held).lost == []
    assert lease_end_ms(store, held.id) >= before + 1_000


def test_a_beat_after_a_job_lost_its_record_tells_it_as_lost(store):
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    record = store.client.dump(keys.rq_job(held.id))
    store.client.delete(keys.rq_job(held.id))
    store.client.set(keys.rq_job(held.id), "another type")
    assert beat(store, "w1", held).lost == [held.id]
    store.client.restore(keys.rq_job(held.id), 0, record, replace=True)
    assert seen(store, held.id).worker == "w1"


def service(store, tenant: str = "blue") -> int:
    return int(store.client.hget(keys.tenant(tenant), "service_mwt") or 0)


def test_an_answer_longer_than_expected_is_charged_while_it_grows_and_settled_to_the_token(store):
    beat(store)
    admitted(store, a_job(prompt_tokens=10, max_tokens=100, cost_mwt=50_000))
    job = claim_one(store)
    assert service(store) == 50_000
    for generated, charged in ((0, 50_000), (10, 50_000), (11, 54_000), (60, 250_000), (11, 250_000)):
        store.renew(a_beat(), [job.held], generated={job.id: generated})
        assert service(store) == charged
    store.settle(an_ending(job, usage=Usage(10, 0, 70)), "w1")
    assert service(store) == 290_000


def test_an_overrun_counts_by_its_tenants_weight_and_goes_back_with_the_job(store):
    Tenants(store.client).set("blue", TenantPolicy(weight=2))
    beat(store)
    admitted(store, a_job(prompt_tokens=10, max_tokens=100, cost_mwt=50_000))
    job = claim_one(store)
    store.renew(a_beat(), [job.held], generated={job.id: 60})
    assert service(store) == 125_000
    assert store.release("w1", [job.held]) == 1
    assert service(store) == 0


def test_where_turns_are_counted_a_long_answer_is_one_turn(store, settings):
    reconfigure(store, settings, fairness="turns")
    beat(store)
    admitted(store, a_job(prompt_tokens=10, max_tokens=100, cost_mwt=50_000))
    job = claim_one(store)
    store.renew(a_beat(), [job.held], generated={job.id: 60})
    assert service(store) == 1_000


def test_who_holds_a_job_no_more_charges_nothing(store):
    beat(store)
    admitted(store, a_job(cost_mwt=50_000, max_tokens=100))
    job = claim_one(store)
    assert store.renew(a_beat(), [Held(job.id, "stale")], generated={job.id: 60}).lost == [job.id]
    assert service(store) == 50_000

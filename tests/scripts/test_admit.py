"""Tests of the script `admit` when it admits a job: what it stores, and how it answers repeated ids and keys."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from shared.errors import ScriptError, StoreUnavailable
from shared.jobs.outcomes import Refused
from shared.jobs.states import JobState
from shared.store import keys
from shared.store.keys import queue_name
from shared.store.replies import Admitted, IdempotencyMismatch, Rings
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
    reconfigure,
    stat,
    view_of,
)

QUEUE = queue_name("blue", MODEL)


def test_an_admitted_job_waits_with_its_payload_and_deadline(store):
    heartbeat(store)
    job = a_job(deadline_ms=5_000, payload={"prompt": "hé"}, metadata={"k": "v"}, key_label="ci", traceparent="00-a")
    assert store.admit(job) == Admitted(job.id, again=False, position=1, inflight=1)
    view = view_of(store, job.id)
    assert (view.state, view.tenant, view.model, view.position) == (JobState.QUEUED, "blue", MODEL, 1)
    assert (view.deadline_at_ms - view.admitted_ms, view.attempts, view.metadata) == (5_000, 0, {"k": "v"})
    assert claim_one(store).payload == job.payload


def test_an_offer_with_a_known_id_returns_the_same_admission(store):
    heartbeat(store)
    job = a_job()
    admitted(store, job)
    before = contents(store)
    assert store.admit(job) == Admitted(job.id, again=True, position=1, inflight=1)
    assert contents(store) == before
    assert stat(store, "admitted") == 1


def test_an_offer_with_a_known_id_is_answered_even_when_the_system_is_full_or_has_no_live_worker(store, settings):
    reconfigure(store, settings, max_inflight=1)
    heartbeat(store)
    job = a_job()
    admitted(store, job)
    advance_clock(store, 10_000)
    assert store.admit(job) == Admitted(job.id, again=True, position=1, inflight=1)


def test_a_repeated_offer_of_a_running_job_returns_position_zero(store):
    heartbeat(store)
    job = a_job()
    admitted(store, job)
    claim_one(store)
    assert store.admit(job) == Admitted(job.id, again=True, position=0, inflight=1)


def test_the_same_idempotency_key_and_body_return_the_first_job(store):
    heartbeat(store)
    first = admitted(store, a_job(idem_digest="k1", body_digest="b1"))
    again = store.admit(a_job(idem_digest="k1", body_digest="b1"))
    assert again == Admitted(first, again=True, position=1, inflight=1)


def test_the_same_idempotency_key_with_another_body_is_a_mismatch(store):
    heartbeat(store)
    first = admitted(store, a_job(idem_digest="k1", body_digest="b1"))
    before = contents(store)
    assert store.admit(a_job(idem_digest="k1", body_digest="b2")) == IdempotencyMismatch(first)
    assert contents(store) == before


def test_an_idempotency_key_belongs_to_one_tenant(store):
    heartbeat(store)
    first = admitted(store, a_job(idem_digest="k1", body_digest="b1"))
    other = store.admit(a_job("green", idem_digest="k1", body_digest="b2"))
    assert isinstance(other, Admitted)
    assert other.id != first


def test_an_idempotency_key_is_valid_after_its_job_ended_but_not_after_the_jobs_record_is_gone(store):
    heartbeat(store)
    first = admitted(store, a_job(idem_digest="k1", body_digest="b1"))
    store.settle(an_ending(claim_one(store).held), "w1")
    assert store.admit(a_job(idem_digest="k1", body_digest="b1")) == Admitted(first, again=True, position=0, inflight=0)
    store.client.delete(keys.rq_job(first))
    fresh = store.admit(a_job(idem_digest="k1", body_digest="b2"))
    assert fresh == Admitted(fresh.id, again=False, position=1, inflight=1)
    assert fresh.id != first


def test_idempotency_and_supersede_keys_outlive_the_longest_possible_life_of_their_job(store, settings):
    """Its worker may die at the deadline, and a gap in the heartbeats before the lease ends adds one more lease."""
    reconfigure(store, settings, lease_ms=600_000)
    heartbeat(store)
    admitted(store, a_job(idem_digest="k1", supersede_digest="d1"))
    latest_end_ms = 60_000 + 2 * 600_000
    assert store.client.pttl(keys.supersede("blue", "d1")) > latest_end_ms
    assert store.client.pttl(keys.idem("blue", "k1")) > latest_end_ms + 3_600_000


def test_a_refusal_stores_no_idempotency_key(store):
    assert isinstance(store.admit(a_job(idem_digest="k1", body_digest="b1")), Refused)
    heartbeat(store)
    assert isinstance(store.admit(a_job(idem_digest="k1", body_digest="b2")), Admitted)


def test_a_tenants_queue_is_ordered_by_latest_start_and_rqs_list_mirrors_it(store):
    heartbeat(store)
    late, early, middle = (
        admitted(store, a_job(deadline_ms=60_000, latest_start_ms=start_ms)) for start_ms in (50_000, 10_000, 30_000)
    )
    expected = [early, middle, late]
    assert [raw.decode() for raw in store.client.zrange(keys.order(QUEUE), 0, -1)] == expected
    assert [raw.decode() for raw in store.client.lrange(f"rq:queue:{QUEUE}", 0, -1)] == expected
    assert [view_of(store, job_id).position for job_id in expected] == [1, 2, 3]
    assert [job.id for job in claim(store, room=3)] == expected


def test_an_admission_returns_the_jobs_position_in_its_tenants_queue(store):
    heartbeat(store)
    assert store.admit(a_job(deadline_ms=50_000)).position == 1
    assert store.admit(a_job(deadline_ms=60_000)).position == 2
    assert store.admit(a_job(deadline_ms=40_000)).position == 1


def test_an_admission_rings_the_pools_doorbell_and_the_doorbell_list_is_capped(store, settings):
    reconfigure(store, settings, max_queue_size=100, max_inflight=100)
    heartbeat(store)
    for _ in range(70):
        admitted(store, a_job())
    assert store.client.llen(keys.wake(MODEL)) == 64
    assert store.wait_for_work("w1", MODEL, timeout_s=1) == Rings(pool=True)


def test_numbers_of_more_than_fourteen_digits_are_stored_exactly(store):
    heartbeat(store)
    tokens, cost_mwt = 1_234_567_890_123, 1_234_567_890_123_457
    job_id = admitted(store, a_job(prompt_tokens=tokens, max_tokens=1, cost_mwt=cost_mwt))
    assert store.client.hget(keys.rq_job(job_id), "penstock_cost_mwt") == b"%d" % cost_mwt
    assert store.client.hget(keys.tenant("blue"), "waiting_mwt") == b"%d" % cost_mwt
    latest_us = int(store.client.hget(keys.rq_job(job_id), "penstock_latest_us"))
    assert store.client.zscore(keys.order(QUEUE), job_id) == latest_us
    assert 59_000_000 <= latest_us - view_of(store, job_id).admitted_ms * 1_000 <= 61_000_000
    claim_one(store)
    assert store.client.hget(keys.tenant("blue"), keys.service_field(MODEL)) == b"%d" % cost_mwt


def test_a_job_without_cost_leaves_the_tenants_sums_at_zero(store):
    heartbeat(store)
    job_id = admitted(store, a_job(prompt_tokens=0, max_tokens=0, cost_mwt=0))
    store.cancel(job_id)
    assert store.client.hmget(keys.tenant("blue"), "waiting", "waiting_tokens", "waiting_mwt") == [b"0", b"0", b"0"]


def test_a_tenants_record_lives_longer_than_its_longest_job(store, settings):
    reconfigure(store, settings, result_ttl_s=1)
    heartbeat(store)
    day_ms = 86_400_000
    admitted(store, a_job(deadline_ms=day_ms))
    ttl_ms = store.client.pttl(keys.tenant("blue"))
    assert ttl_ms > day_ms + 3_000_000


@pytest.mark.parametrize("bound", ["max_inflight", "max_queue_size"])
def test_concurrent_offers_are_admitted_exactly_up_to_the_bound(store, settings, bound):
    """One place is left, and two hundred offers from 32 threads compete for it."""
    reconfigure(store, settings, **{"admission": "bounds", "max_inflight": 1_000, "max_queue_size": 1_000, bound: 50})
    heartbeat(store)
    for _ in range(49):
        admitted(store, a_job())
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda _: store.admit(a_job()), range(200)))
    admissions = [answer for answer in answers if isinstance(answer, Admitted)]
    assert len(admissions) == 1
    assert store.snapshot().inflight == 50
    assert stat(store, "yielded") == 199


def test_a_hundred_concurrent_offers_with_one_idempotency_key_admit_one_job(store):
    heartbeat(store)
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda _: store.admit(a_job(idem_digest="k", body_digest="b")), range(100)))
    assert len({answer.id for answer in answers}) == 1
    assert [answer.again for answer in answers].count(False) == 1
    assert store.snapshot().inflight == 1


def test_admit_writes_nothing_when_memory_is_full(store, memory_is_full):
    heartbeat(store)
    with memory_is_full():
        before = contents(store)
        with pytest.raises(StoreUnavailable):
            store.admit(a_job())
        assert contents(store) == before
    assert isinstance(store.admit(a_job()), Admitted)


def test_a_number_that_lua_cannot_represent_raises_an_error_before_anything_is_written(store):
    heartbeat(store)
    before = contents(store)
    with pytest.raises(ScriptError, match="max_tokens"):
        store.admit(a_job(max_tokens=2**53 + 1))
    assert contents(store) == before


def test_scripts_still_run_after_the_store_flushed_its_script_cache(store):
    heartbeat(store)
    store.client.script_flush()
    job_id = admitted(store, a_job())
    store.client.script_flush()
    held = claim_one(store).held
    store.client.script_flush()
    heartbeat(store, "w1", held)
    store.client.script_flush()
    store.settle(an_ending(held), "w1")
    assert view_of(store, job_id).state is JobState.SUCCEEDED

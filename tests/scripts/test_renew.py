"""Tests of the script `renew`: a heartbeat extends exactly the leases that it names and reports the lost jobs."""

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.job import ClaimRef, Usage
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.replies import Progress
from tests.support.builders import (
    MODEL,
    a_heartbeat,
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim,
    claim_one,
    heartbeat,
    pass_time,
    reconfigure,
    refused,
    view_of,
)

pytestmark = pytest.mark.rq


def lease_end_ms(store, job_id: str) -> float:
    return store.client.zscore(keys.leases(), job_id)


def test_a_heartbeat_makes_a_worker_live_and_stores_what_it_reports(store):
    facts = {"device": "cuda:0", "rate_wt_s": 812.5, "pid": 7, "seen_us": 1_234_567_890_123_456}
    heartbeat(store, slots=8, slots_busy=3, cells=2_048, cells_free=1_000, facts=facts, draining=True)
    (view,) = store.snapshot().workers
    assert (view.name, view.model, view.live, view.draining) == ("w1", MODEL, True, True)
    assert (view.slots, view.slots_busy, view.cells, view.cells_free) == (8, 3, 2_048, 1_000)
    assert view.facts == {"device": "cuda:0", "rate_wt_s": "812.5", "pid": "7", "seen_us": "1234567890123456"}
    assert store.snapshot().models == [MODEL]


def test_a_heartbeat_extends_the_leases_that_it_names_and_no_others(store, settings):
    reconfigure(store, settings, lease_ms=3_000)
    heartbeat(store)
    for _ in range(2):
        admitted(store, a_job())
    kept, dropped = claim(store, room=2)
    advance_clock(store, 1_500)
    before = lease_end_ms(store, dropped.id)
    assert heartbeat(store, "w1", kept.held).lost == []
    assert lease_end_ms(store, kept.id) >= before + 1_500
    assert lease_end_ms(store, dropped.id) == before
    advance_clock(store, 1_600)
    assert store.reap().requeued == 1
    assert heartbeat(store, "w1", kept.held, dropped.held).lost == [dropped.id]


@pytest.mark.parametrize("held", [ClaimRef("nobody", "c"), "another token", "another worker"])
def test_a_job_that_the_worker_does_not_hold_is_reported_as_lost_and_stays_unchanged(store, held):
    heartbeat(store)
    admitted(store, a_job())
    job = claim_one(store)
    worker = "w1"
    if held == "another token":
        held = ClaimRef(job.id, "stale")
    elif held == "another worker":
        held, worker = job.held, "w2"
    before = lease_end_ms(store, job.id)
    advance_clock(store, 500)
    assert heartbeat(store, worker, held).lost == [held.id]
    assert lease_end_ms(store, job.id) == before


def test_an_ended_job_is_reported_as_lost(store):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.settle(an_ending(held), "w1")
    assert heartbeat(store, "w1", held).lost == [held.id]


def test_a_job_claimed_anew_is_lost_to_its_first_holder_and_kept_by_its_second(store):
    heartbeat(store)
    admitted(store, a_job())
    first = claim_one(store).held
    pass_time(store, 16_500)
    store.reap()
    second = claim_one(store, "w2").held
    assert heartbeat(store, "w1", first).lost == [first.id]
    assert heartbeat(store, "w2", second).lost == []


def test_a_cancel_is_reported_again_with_every_heartbeat(store):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.cancel(held.id)
    for _ in range(2):
        answer = heartbeat(store, "w1", held)
        assert (answer.canceled, answer.lost) == ([held.id], [])


def test_a_heartbeat_can_name_any_number_of_jobs(store, settings):
    reconfigure(store, settings, max_queue_size=100, max_inflight=100)
    heartbeat(store)
    for _ in range(60):
        admitted(store, a_job())
    held = [job.held for job in claim(store, room=60, cells_free=100_000)]
    assert len(held) == 60
    for job in held[:30]:
        store.cancel(job.id)
    answer = heartbeat(store, "w1", *held, ClaimRef("x", "y"))
    assert (sorted(answer.canceled), answer.lost) == (sorted(job.id for job in held[:30]), ["x"])


def test_a_heartbeat_reports_a_drain_of_the_worker_or_of_the_whole_system(store):
    assert not heartbeat(store).drain
    store.client.hset(keys.worker("w1"), "drain_asked", "1")
    assert heartbeat(store).drain
    assert not heartbeat(store, "w2").drain
    store.client.hset(keys.config(), "draining", "1")
    assert heartbeat(store, "w2").drain


def test_a_heartbeat_of_a_worker_unknown_to_rq_reports_that_and_creates_no_rq_record(store):
    assert heartbeat(store, facts={"rq_state": "busy"}).unknown_to_rq
    assert store.client.exists("rq:worker:w1") == 0


def test_facts_that_begin_with_rq_are_written_to_rqs_record_of_the_worker(store):
    store.client.hset("rq:worker:w1", "birth", "2026-01-01T00:00:00.000000Z")
    assert not heartbeat(store, facts={"rq_state": "busy", "device": "cpu"}).unknown_to_rq
    record = store.client.hgetall("rq:worker:w1")
    assert record[b"state"] == b"busy"
    assert record[b"last_heartbeat"].endswith(b"Z")
    assert b"device" not in record
    assert store.client.pttl("rq:worker:w1") > 100_000
    assert store.snapshot().workers[0].facts == {"device": "cpu"}


def test_rqs_current_job_of_a_worker_is_the_first_job_that_it_holds(store):
    heartbeat(store)
    store.client.hset("rq:worker:w1", "birth", "2026-01-01T00:00:00.000000Z")
    for _ in range(2):
        admitted(store, a_job())
    held = [job.held for job in claim(store, room=2)]
    heartbeat(store, "w1", *held)
    assert store.client.hget("rq:worker:w1", "current_job") == held[0].id.encode()
    heartbeat(store, "w1")
    assert store.client.hget("rq:worker:w1", "current_job") is None


def test_a_worker_silent_for_a_minute_leaves_its_pool_at_the_next_heartbeat_of_another_worker(store):
    """Its own hash expires at the same time, so nothing else in the store names the pool that it was in."""
    heartbeat(store)
    advance_clock(store, 61_000)
    store.client.delete(keys.worker("w1"))
    heartbeat(store, "w2")
    assert store.client.zrange(keys.pool(MODEL), 0, -1) == [b"w2"]


def test_automatic_bounds_count_only_live_workers(store):
    heartbeat(store, slots=10)
    advance_clock(store, 4_000)
    heartbeat(store, "w2", slots=30)
    assert store.client.hget(keys.config(), "live_slots") == b"40"
    advance_clock(store, 1_500)
    heartbeat(store, "w2", slots=30)
    assert store.client.hget(keys.config(), "live_slots") == b"30"


def test_renew_works_when_memory_is_full(store, memory_is_full):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    before = lease_end_ms(store, held.id)
    advance_clock(store, 1_000)
    with memory_is_full():
        assert heartbeat(store, "w1", held).lost == []
    assert lease_end_ms(store, held.id) >= before + 1_000


def test_a_heartbeat_reports_a_job_with_a_corrupt_record_as_lost(store):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    record = store.client.dump(keys.rq_job(held.id))
    store.client.delete(keys.rq_job(held.id))
    store.client.set(keys.rq_job(held.id), "another type")
    assert heartbeat(store, "w1", held).lost == [held.id]
    store.client.restore(keys.rq_job(held.id), 0, record, replace=True)
    assert view_of(store, held.id).worker == "w1"


def service_mwt(store, tenant: str = "blue") -> int:
    return int(store.client.hget(keys.tenant(tenant), keys.service_field(MODEL)) or 0)


def test_an_answer_longer_than_expected_is_charged_while_it_grows_and_settled_exactly(store):
    heartbeat(store)
    admitted(store, a_job(prompt_tokens=10, max_tokens=100, cost_mwt=50_000))
    job = claim_one(store)
    assert service_mwt(store) == 50_000
    for generated, charged in ((0, 50_000), (10, 50_000), (11, 54_000), (60, 250_000), (11, 250_000)):
        store.renew(a_heartbeat(), [job.held], progress={job.id: Progress(generated)})
        assert service_mwt(store) == charged
    store.settle(an_ending(job, usage=Usage(10, 0, 70)), "w1")
    assert service_mwt(store) == 290_000


def test_cpu_time_is_charged_while_the_answer_grows_like_the_tokens_computed_in_it(store):
    heartbeat(store)
    admitted(store, a_job(prompt_tokens=10, max_tokens=100, cost_mwt=50_000))
    job = claim_one(store)
    for progress, charged in (((10, 0), 50_000), ((10, 7), 57_000), ((11, 7), 61_000), ((11, 0), 61_000)):
        store.renew(a_heartbeat(), [job.held], progress={job.id: Progress(*progress)})
        assert service_mwt(store) == charged
    store.settle(an_ending(job, usage=Usage(10, 0, 12, cpu_tokens=8)), "w1")
    assert service_mwt(store) == 66_000


def test_an_overrun_is_divided_by_the_tenants_weight_and_refunded_by_a_release(store):
    Tenants(store.client).set("blue", TenantPolicy(weight=2))
    heartbeat(store)
    admitted(store, a_job(prompt_tokens=10, max_tokens=100, cost_mwt=50_000))
    job = claim_one(store)
    store.renew(a_heartbeat(), [job.held], progress={job.id: Progress(60)})
    assert service_mwt(store) == 125_000
    assert store.release("w1", [job.held]) == 1
    assert service_mwt(store) == 0


def test_turns_fairness_charges_one_turn_for_a_long_answer(store, settings):
    reconfigure(store, settings, fairness="turns")
    heartbeat(store)
    admitted(store, a_job(prompt_tokens=10, max_tokens=100, cost_mwt=50_000))
    job = claim_one(store)
    store.renew(a_heartbeat(), [job.held], progress={job.id: Progress(60)})
    assert service_mwt(store) == 1_000


def test_a_worker_that_lost_a_job_charges_nothing_for_it(store):
    heartbeat(store)
    admitted(store, a_job(cost_mwt=50_000, max_tokens=100))
    job = claim_one(store)
    assert store.renew(a_heartbeat(), [ClaimRef(job.id, "stale")], progress={job.id: Progress(60)}).lost == [job.id]
    assert service_mwt(store) == 50_000


def test_the_drafts_that_workers_report_are_counted_once(store):
    for worker, accepted, rejected in (("w1", 0, 3), ("w1", 5, 3), ("w2", 2, 0), ("w1", 9, 4)):
        heartbeat(store, worker, facts={"drafts_accepted": accepted, "drafts_rejected": rejected})
    stats = store.snapshot(stats=True).stats
    drafts = {field: number for field, number in stats.items() if field.startswith("drafts|")}
    assert drafts == {f"drafts|{MODEL}|accepted": 11, f"drafts|{MODEL}|rejected": 4}


def test_the_pauses_that_workers_report_are_counted_once(store):
    def beat(worker: str, **ended: int) -> None:
        heartbeat(store, worker, facts={f"pauses_{way}": number for way, number in ended.items()})

    beat("w1", kept=3, copied=0)
    beat("w1", kept=3, copied=1)
    beat("w2", kept=2, recomputed=4)
    beat("w1", kept=8, copied=1)
    stats = store.snapshot(stats=True).stats
    pauses = {field: number for field, number in stats.items() if field.startswith("pauses|")}
    assert pauses == {f"pauses|{MODEL}|kept": 10, f"pauses|{MODEL}|copied": 1, f"pauses|{MODEL}|recomputed": 4}
    store.client.hset(keys.worker("w1"), "pauses_kept", "spoiled")
    beat("w1", kept=8)


@pytest.mark.parametrize("reason", ["inflight_full", "tenant_queue_full"])
def test_a_heartbeat_tells_how_many_requests_the_pool_has_refused_because_of_its_load(store, settings, reason):
    bounds = {"max_inflight": 2} if reason == "inflight_full" else {"max_queue_size": 2}
    reconfigure(store, settings, **bounds)
    assert heartbeat(store).load_refusals == 0
    for _ in range(2):
        admitted(store, a_job())
    for _ in range(3):
        assert refused(store, a_job()).reason == reason
    assert heartbeat(store).load_refusals == 3
    assert heartbeat(store, "w2", model="other").load_refusals == 0


def test_a_refusal_that_does_not_depend_on_the_load_is_no_demand(store):
    refused(store, a_job())
    heartbeat(store, draining=True)
    refused(store, a_job())
    assert heartbeat(store).load_refusals == 0

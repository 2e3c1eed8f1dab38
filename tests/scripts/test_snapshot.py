"""Tests of the script `snapshot`, which returns one consistent view of the whole system and writes nothing."""

import pytest

from shared.accounts.routes import Pools
from shared.store import keys
from shared.store.replies import Overview
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
)


def test_the_snapshot_of_an_empty_store_is_empty(store):
    snapshot = store.snapshot()
    assert (snapshot.inflight, snapshot.waiting, snapshot.running, snapshot.max_inflight) == (0, 0, 0, 64)
    assert (snapshot.tenants, snapshot.workers, snapshot.models, snapshot.stats, snapshot.draining) == (
        [],
        [],
        [],
        {},
        False,
    )


def test_a_snapshot_shows_tenants_workers_and_counters_and_changes_nothing(store):
    heartbeat(store)
    for tenant in ("a", "a", "b"):
        admitted(store, a_job(tenant))
    claim_one(store)
    before = contents(store)
    snapshot = store.snapshot(stats=True)
    assert contents(store) == before
    assert (snapshot.inflight, snapshot.waiting, snapshot.running) == (3, 2, 1)
    a, b = sorted(snapshot.tenants, key=lambda tenant: tenant.name)
    assert (a.name, a.waiting, a.waiting_tokens, a.running) == ("a", 1, 30, 1)
    assert (b.name, b.waiting, b.running, b.weight, b.max_waiting, b.max_waiting_tokens) == ("b", 1, 0, 1.0, 16, None)
    assert (a.queues, b.queues, a.group) == ({keys.model_slug(MODEL)}, {keys.model_slug(MODEL)}, None)
    assert snapshot.workers[0].name == "w1"
    assert snapshot.models == [MODEL]
    assert (snapshot.stats["admitted"], snapshot.stats["executed"]) == (3, 1)


def test_a_snapshot_shows_the_policies_and_settings_in_force(store, settings):
    reconfigure(store, settings, max_inflight=7, max_queue_size=5)
    heartbeat(store)
    store.client.hset(
        keys.tenant("a"),
        mapping={"policy": 1, "policy_weight_milli": 2_500, "policy_max_waiting": 3, "policy_max_waiting_tokens": 99},
    )
    admitted(store, a_job("a"))
    admitted(store, a_job("b"))
    snapshot = store.snapshot()
    a, b = sorted(snapshot.tenants, key=lambda tenant: tenant.name)
    assert snapshot.max_inflight == 7
    assert (a.weight, a.max_waiting, a.max_waiting_tokens) == (2.5, 3, 99)
    assert (b.weight, b.max_waiting, b.max_waiting_tokens) == (1.0, 5, None)


def test_a_snapshot_shows_the_age_of_a_tenants_oldest_queued_job(store):
    heartbeat(store)
    admitted(store, a_job())
    advance_clock(store, 3_000)
    (tenant,) = store.snapshot().tenants
    assert 3_000 <= tenant.oldest_age_ms < 4_000
    claim(store)
    (tenant,) = store.snapshot().tenants
    assert tenant.oldest_age_ms is None


def test_a_snapshot_shows_the_oldest_queued_job_even_when_another_is_next(store):
    heartbeat(store)
    admitted(store, a_job(latest_start_ms=50_000))
    advance_clock(store, 3_000)
    admitted(store, a_job(latest_start_ms=1_000))
    (tenant,) = store.snapshot().tenants
    assert 3_000 <= tenant.oldest_age_ms < 4_000


@pytest.mark.parametrize(("limit", "shown"), [(0, 0), (-1, 0), (2, 2), (50, 50), (1_000, 64)])
def test_a_snapshot_shows_at_most_the_requested_number_of_tenants_and_at_most_sixty_four(store, limit, shown):
    for number in range(70):
        store.client.zadd(keys.tenants(), {f"t{number:02}": number})
    tenants = store.snapshot(tenants=limit).tenants
    assert [tenant.name for tenant in tenants] == [f"t{number:02}" for number in range(69, 69 - shown, -1)]


def test_a_snapshot_and_an_overview_read_counters_only_if_they_are_requested(store):
    heartbeat(store)
    admitted(store, a_job())
    store.client.hset(keys.stats(), mapping={f"h|queue_wait|blue|m|{number}": 1 for number in range(15_000)})
    assert len(store.snapshot(stats=True).stats) > 15_000
    sent_before = store.client.info("stats")["total_net_output_bytes"]
    assert store.snapshot().stats == {}
    store.overview()
    assert store.client.info("stats")["total_net_output_bytes"] - sent_before < 20_000


def test_counters_are_read_by_name(store):
    heartbeat(store)
    admitted(store, a_job())
    store.client.hset(keys.stats(), "executed", "many")
    assert store.counters("admitted", "executed", "yielded") == [1, 0, 0]


def test_the_overview_has_the_same_numbers_as_the_snapshot(store, settings):
    def compared():
        overview, snapshot = store.overview(), store.snapshot()
        assert (overview.inflight, overview.max_inflight) == (snapshot.inflight, snapshot.max_inflight)
        assert (overview.workers, overview.slots) == (snapshot.live_workers, snapshot.live_slots)
        assert overview.draining == snapshot.draining
        return overview

    assert compared() == Overview(0, 64, 0, 0, draining=False)
    heartbeat(store, slots=20)
    heartbeat(store, "w2", slots=30)
    admitted(store, a_job())
    assert compared() == Overview(1, 200, 2, 50, draining=False)
    reconfigure(store, settings, max_inflight=7)
    store.client.hset(keys.config(), "draining", "1")
    advance_clock(store, 6_000)
    store.reap()
    assert compared() == Overview(1, 7, 0, 0, draining=True)


def test_a_snapshot_lists_workers_of_every_pool_even_if_one_pool_is_large(store):
    heartbeat(store, "small", model="s/m ä", slots=1)
    for number in range(70):
        advance_clock(store, 10)
        heartbeat(store, f"w{number:02}")
    snapshot = store.snapshot()
    assert len(snapshot.workers) == 64
    assert "small" in [worker.name for worker in snapshot.workers]
    assert {worker.model for worker in store.snapshot(workers=2).workers} == {MODEL, "s/m ä"}
    assert snapshot.live_workers == 71
    assert sorted(snapshot.live_models) == [MODEL, "s/m ä"]
    advance_clock(store, 6_000)
    assert store.snapshot().live_models == []
    assert store.snapshot(workers=0).workers == []


def test_the_backlog_of_a_pool_is_its_queued_work_over_its_measured_rate_without_batch_jobs(store):
    rates = {"prefill_tps": 1_000.0, "tpot_ms": 10.0}
    heartbeat(store, facts=rates | {"mu_wtps": 100.0})
    heartbeat(store, "w2", facts=rates | {"mu_wtps": 300.0})
    heartbeat(store, "other", model="n", facts=rates | {"mu_wtps": 1_000.0})
    heartbeat(store, "unmeasured", model="o")
    assert store.snapshot().backlogs_s == {MODEL: 0.0, "n": 0.0}
    for job in (a_job(cost_mwt=100_000), a_job("b", cost_mwt=100_000), a_job("b", cost_mwt=9_000_000, priority=-1)):
        admitted(store, job)
    assert store.snapshot().backlogs_s == {MODEL: pytest.approx(0.5), "n": 0.0}
    claim_one(store)
    assert store.snapshot().backlogs_s[MODEL] == pytest.approx(0.25)
    assert store.snapshot().busy_ratios == {MODEL: 1 / 8, "n": 0.0, "o": 0.0}
    advance_clock(store, 6_000)
    assert store.snapshot().backlogs_s == {}


@pytest.mark.parametrize("model", ["m", "org/model:7b", "Ünï-€-😀 x", "a.b_c-D9", "\x7f\n|"])
def test_the_scripts_use_the_same_form_of_a_models_name_in_keys(store, model):
    heartbeat(store, model=model)
    assert store.snapshot().live_models == [model]
    store.farewell("w1", model)
    assert store.snapshot().live_models == []


def test_a_worker_whose_heartbeats_stopped_is_shown_as_not_live(store):
    heartbeat(store)
    advance_clock(store, 6_000)
    (worker,) = store.snapshot().workers
    assert not worker.live
    assert 6_000 <= worker.heartbeat_age_ms < 7_000


def test_a_model_not_served_for_an_hour_is_not_shown(store):
    heartbeat(store, model="old")
    advance_clock(store, 3_700_000)
    heartbeat(store)
    assert store.snapshot().models == [MODEL]


def test_a_corrupt_record_does_not_break_the_snapshot(store):
    heartbeat(store)
    job_id = admitted(store, a_job())
    record = store.client.dump(keys.rq_job(job_id))
    store.client.delete(keys.rq_job(job_id))
    store.client.sadd(keys.rq_job(job_id), "x")
    assert store.snapshot().waiting == 1
    store.client.restore(keys.rq_job(job_id), 0, record, replace=True)


def test_all_counts_are_zero_when_no_job_is_inflight(store):
    heartbeat(store)
    for tenant in ("a", "b"):
        admitted(store, a_job(tenant))
    store.settle(an_ending(claim_one(store).held), "w1")
    store.release("w1", [claim_one(store).held])
    store.cancel(claim_one(store).id)
    for _ in range(11):
        advance_clock(store, 1_500)
        heartbeat(store, "w2")
    store.reap()
    snapshot = store.snapshot()
    assert (snapshot.inflight, snapshot.waiting, snapshot.running) == (0, 0, 0)
    assert {(t.waiting, t.waiting_tokens, t.running) for t in snapshot.tenants} == {(0, 0, 0)}
    assert store.client.hmget(keys.tenant("a"), "waiting_mwt") == [b"0"]
    assert store.client.exists(keys.inflight(), keys.deadlines(), keys.leases(), keys.polls(), keys.active(MODEL)) == 0


def test_snapshot_works_when_memory_is_full(store, memory_is_full):
    heartbeat(store)
    with memory_is_full():
        assert len(store.snapshot().workers) == 1


def test_each_pool_has_its_workers_jobs_and_prices_also_when_its_last_worker_has_died(store):
    Pools(store.client).change("n", {"prompt_price_micro": 500, "answer_price_micro": 2_000})
    heartbeat(store, slots=3)
    heartbeat(store, "other", model="n", slots=5)
    admitted(store, a_job(model="n"))
    admitted(store, a_job("red", model="n"))
    advance_clock(store, 3_000)
    pools = store.snapshot().pools
    assert [(pool.live_workers, pool.slots, pool.waiting, pool.reason) for pool in (pools[MODEL], pools["n"])] == [
        (1, 3, 0, None),
        (1, 5, 2, None),
    ]
    assert (pools["n"].prompt_price_micro, pools["n"].answer_price_micro) == (500, 2_000)
    assert 3_000 <= pools["n"].oldest_age_ms < 4_000
    assert pools[MODEL].oldest_age_ms is None
    assert store.snapshot(tenants=0).pools["n"].oldest_age_ms is None
    advance_clock(store, 3_000)
    heartbeat(store)
    snapshot = store.snapshot()
    dead = snapshot.pools["n"]
    assert (dead.live_workers, dead.slots, dead.waiting, dead.reason) == (0, 0, 2, "no_worker")
    assert 6_000 <= dead.heartbeat_age_ms < 7_000
    assert (snapshot.pools[MODEL].reason, snapshot.live_models) == (None, [MODEL])


def test_a_pool_drains_if_all_its_live_workers_do(store):
    heartbeat(store, draining=True)
    heartbeat(store, "w2")
    heartbeat(store, "other", model="n", draining=True)
    pools = store.snapshot().pools
    assert (pools[MODEL].reason, pools["n"].reason, pools["n"].live_workers) == (None, "draining", 1)
    heartbeat(store, "w2", draining=True)
    assert store.snapshot().pools[MODEL].reason == "draining"

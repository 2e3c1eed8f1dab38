"""Tests of the refusals of the script `admit`: each check alone, their order, and that only counters change."""

import pytest

from shared.jobs.job import new_job_id
from shared.jobs.outcomes import Refusal
from shared.store import keys
from shared.store.replies import Admitted
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    advance_clock,
    claim_one,
    heartbeat,
    reconfigure,
    refused,
    stat,
)


def test_without_a_live_worker_a_job_is_refused_and_nothing_changes(store):
    answer = refused(store, a_job())
    assert (answer.reason, answer.limit, answer.value, answer.max) == (Refusal.NO_WORKER, "live_workers", 0, 1)
    assert answer.retry_hint_ms >= 2_000
    assert answer.answer_ms is None


def test_a_worker_of_another_model_does_not_count_as_live(store):
    heartbeat(store, model="other")
    assert refused(store, a_job()).reason is Refusal.NO_WORKER


def test_a_worker_silent_for_more_than_five_seconds_does_not_count_as_live(store):
    heartbeat(store)
    advance_clock(store, 4_000)
    assert isinstance(store.admit(a_job()), Admitted)
    advance_clock(store, 1_100)
    assert refused(store, a_job()).reason is Refusal.NO_WORKER


def test_a_draining_system_refuses_and_nothing_changes(store):
    heartbeat(store)
    store.client.hset(keys.config(), "draining", "1")
    answer = refused(store, a_job())
    assert (answer.reason, answer.limit, answer.value, answer.max) == (Refusal.DRAINING, "draining", 1, 0)
    assert answer.retry_hint_ms >= 5_000


def test_a_pool_whose_workers_all_drain_promises_nothing_and_another_pool_does(store):
    heartbeat(store, "w1", draining=True)
    heartbeat(store, "w2")
    heartbeat(store, "w3", model="other")
    assert isinstance(store.admit(a_job()), Admitted)
    heartbeat(store, "w2", draining=True)
    answer = refused(store, a_job())
    assert (answer.reason, answer.limit) == (Refusal.DRAINING, "draining")
    assert isinstance(store.admit(a_job(model="other")), Admitted)
    heartbeat(store, "w1")
    assert isinstance(store.admit(a_job()), Admitted)


def test_what_all_workers_of_a_pool_have_reported_counts_only_while_they_are_live(store):
    heartbeat(store, "w1", draining=True)
    advance_clock(store, 4_000)
    heartbeat(store, "w2")
    advance_clock(store, 2_000)
    # Only w2 is live, and it claims.
    assert isinstance(store.admit(a_job()), Admitted)
    heartbeat(store, "w1")
    advance_clock(store, 4_000)
    heartbeat(store, "w2", draining=True)
    assert isinstance(store.admit(a_job()), Admitted)
    advance_clock(store, 2_000)
    heartbeat(store, "w2", draining=True)
    assert refused(store, a_job()).reason is Refusal.DRAINING


def test_a_drain_of_one_pool_changes_no_bound_of_another(store):
    heartbeat(store, "w1", slots=100)
    heartbeat(store, "w2", model="other", slots=4)
    before = store.overview()
    heartbeat(store, "w1", slots=100, draining=True)
    assert store.overview() == before
    assert isinstance(store.admit(a_job(model="other")), Admitted)


def test_a_full_system_refuses_every_tenant_and_nothing_changes(store, settings):
    reconfigure(store, settings, max_inflight=2)
    heartbeat(store)
    admitted(store, a_job())
    admitted(store, a_job("green"))
    claim_one(store)
    answer = refused(store, a_job("red"))
    assert (answer.reason, answer.limit, answer.value, answer.max) == (Refusal.INFLIGHT_FULL, "inflight", 2, 2)
    assert (answer.inflight, answer.max_inflight) == (2, 2)


def test_a_tenant_with_a_full_queue_is_refused_while_another_tenant_is_admitted(store):
    heartbeat(store)
    for _ in range(16):
        admitted(store, a_job())
    answer = refused(store, a_job())
    assert (answer.reason, answer.limit, answer.value, answer.max) == (
        Refusal.TENANT_QUEUE_FULL,
        "tenant_waiting_jobs",
        16,
        16,
    )
    assert isinstance(store.admit(a_job("green")), Admitted)


def test_a_tenants_queue_bound_covers_all_its_models(store, settings):
    reconfigure(store, settings, max_queue_size=2)
    heartbeat(store)
    heartbeat(store, "w2", model="n")
    admitted(store, a_job())
    admitted(store, a_job(model="n"))
    assert refused(store, a_job()).reason is Refusal.TENANT_QUEUE_FULL


def test_a_running_job_no_longer_counts_against_its_tenants_queue_bound(store, settings):
    reconfigure(store, settings, max_queue_size=1)
    heartbeat(store)
    admitted(store, a_job())
    claim_one(store)
    assert isinstance(store.admit(a_job()), Admitted)


def test_a_policy_replaces_the_tenants_default_bounds(store):
    heartbeat(store)
    store.client.hset(keys.tenant("blue"), mapping={"policy": 1, "policy_max_waiting": 1})
    store.client.hset(keys.tenant("green"), mapping={"policy": 1, "policy_max_waiting_tokens": 50})
    admitted(store, a_job())
    admitted(store, a_job("green"))
    assert refused(store, a_job()).max == 1
    answer = refused(store, a_job("green"))
    assert (answer.reason, answer.max) == (Refusal.TENANT_TOKENS_FULL, 50)


@pytest.mark.parametrize("bound", ["0", "-5", "1.5", "inf", "many"])
def test_a_bound_that_no_operator_can_set_counts_as_none(store, bound):
    heartbeat(store)
    spoiled = {"policy": 1, "policy_max_waiting": bound, "policy_max_waiting_tokens": bound}
    store.client.hset(keys.tenant("blue"), mapping=spoiled)
    for _ in range(3):
        admitted(store, a_job())


def test_a_tenants_token_bound_counts_prompt_and_answer_together(store, settings):
    reconfigure(store, settings, max_queue_tokens=60)
    heartbeat(store)
    admitted(store, a_job(prompt_tokens=10, max_tokens=20))
    admitted(store, a_job(prompt_tokens=10, max_tokens=20))
    answer = refused(store, a_job(prompt_tokens=1, max_tokens=1))
    assert (answer.reason, answer.limit, answer.value, answer.max) == (
        Refusal.TENANT_TOKENS_FULL,
        "tenant_waiting_tokens",
        60,
        60,
    )


def test_a_tenant_without_queued_jobs_may_queue_one_job_of_any_size(store, settings):
    reconfigure(store, settings, max_queue_tokens=60)
    heartbeat(store)
    admitted(store, a_job(prompt_tokens=100_000, max_tokens=1_000))
    assert refused(store, a_job(prompt_tokens=1, max_tokens=1)).reason is Refusal.TENANT_TOKENS_FULL


def test_the_checks_run_in_a_fixed_order(store, settings):
    """At first every check would refuse; each step removes one cause, and the next check refuses."""
    reconfigure(store, settings, max_inflight=1, max_queue_size=1, max_queue_tokens=1)
    heartbeat(store)
    admitted(store, a_job())
    store.client.hset(keys.config(), "draining", "1")
    advance_clock(store, 6_000)
    reasons = [refused(store, a_job()).reason]
    heartbeat(store)
    reasons.append(refused(store, a_job()).reason)
    store.client.hdel(keys.config(), "draining")
    reasons.append(refused(store, a_job()).reason)
    reconfigure(store, settings, max_inflight=2, max_queue_size=1, max_queue_tokens=1)
    reasons.append(refused(store, a_job()).reason)
    reconfigure(store, settings, max_inflight=2, max_queue_size=2, max_queue_tokens=1)
    reasons.append(refused(store, a_job()).reason)
    assert reasons == [
        Refusal.NO_WORKER,
        Refusal.DRAINING,
        Refusal.INFLIGHT_FULL,
        Refusal.TENANT_QUEUE_FULL,
        Refusal.TENANT_TOKENS_FULL,
    ]


def test_automatic_bounds_are_computed_from_the_live_slots(store):
    heartbeat(store, slots=20)
    heartbeat(store, "w2", slots=30)
    snapshot = store.snapshot()
    assert snapshot.max_inflight == 200
    admitted(store, a_job())
    for _ in range(99):
        admitted(store, a_job())
    answer = refused(store, a_job())
    assert (answer.reason, answer.max, answer.max_inflight) == (Refusal.TENANT_QUEUE_FULL, 100, 200)
    advance_clock(store, 5_100)
    heartbeat(store, slots=1)
    assert store.snapshot().max_inflight == 64


@pytest.mark.parametrize("attempt", [0, 1, 2, 3, 9])
def test_a_retry_hint_doubles_with_each_attempt_up_to_the_third(store, attempt):
    hint_ms = refused(store, a_job(), attempt=attempt).retry_hint_ms
    base_ms = 2_000 * 2 ** min(attempt, 3)
    assert base_ms <= hint_ms <= base_ms * 1.2


def test_a_retry_hint_is_never_below_its_base_even_for_a_negative_attempt(store):
    assert refused(store, a_job(), attempt=-5).retry_hint_ms >= 2_000


def test_retry_hints_are_spread_by_job_id(store):
    ids = [new_job_id() for _ in range(50)]
    hints = [refused(store, a_job(id=job_id)).retry_hint_ms for job_id in ids]
    assert hints == [refused(store, a_job(id=job_id)).retry_hint_ms for job_id in ids]
    assert len(set(hints)) > 25
    assert max(hints) - min(hints) > 200


@pytest.mark.parametrize(
    ("places", "run_ms", "low", "high"),
    [(4, 1, 50, 50), (4, 4_000, 1_000, 1_200), (1, 4_000, 4_000, 4_800), (4, 10**12, 50_000, 60_000)],
)
def test_the_retry_hint_of_a_full_system_is_the_mean_time_between_two_job_ends(
    store, settings, places, run_ms, low, high
):
    reconfigure(store, settings, max_inflight=places)
    heartbeat(store, slots=4)
    for number in range(places):
        admitted(store, a_job(f"t{number}"))
    store.client.hset(keys.books(MODEL), "run_ms", run_ms)
    assert low <= refused(store, a_job()).retry_hint_ms <= high


def test_refusals_are_counted_by_tenant_and_reason(store):
    refused(store, a_job())
    assert stat(store, "yielded") == 1
    assert stat(store, "refused|blue|no_worker") == 1
    assert stat(store, "h|retry_hint|2500") == 1


def test_only_the_first_fifty_tenants_get_their_own_label(store):
    for number in range(52):
        refused(store, a_job(f"t{number}"))
    assert stat(store, "refused|t49|no_worker") == 1
    assert stat(store, "refused|t50|no_worker") == 0
    assert stat(store, "refused|other|no_worker") == 2
    assert store.client.scard(keys.labels()) == 50

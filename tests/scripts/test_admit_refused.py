"""admit refuses: each check alone, their order, and that nothing but counters changes."""

import pytest

from shared.jobs.job import new_job_id
from shared.jobs.outcomes import Refusal
from shared.store import keys
from shared.store.replies import Admitted
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    beat,
    claim_one,
    reconfigure,
    refused,
    shift,
    stat,
)


def test_without_a_live_worker_a_job_is_refused_and_nothing_changes(store):
    answer = refused(store, a_job())
    assert (answer.reason, answer.limit, answer.value, answer.max) == (Refusal.NO_WORKER, "live_workers", 0, 1)
    assert answer.retry_hint_ms >= 2_000
    assert answer.answer_ms is None


def test_a_worker_of_another_model_is_nobody(store):
    beat(store, model="other")
    assert refused(store, a_job()).reason is Refusal.NO_WORKER


def test_a_worker_silent_for_more_than_five_seconds_is_nobody(store):
    beat(store)
    shift(store, 4_000)
    assert isinstance(store.admit(a_job()), Admitted)
    shift(store, 1_100)
    assert refused(store, a_job()).reason is Refusal.NO_WORKER


def test_a_draining_system_refuses_and_nothing_changes(store):
    beat(store)
    store.client.hset(keys.config(), "draining", "1")
    answer = refused(store, a_job())
    assert (answer.reason, answer.limit, answer.value, answer.max) == (Refusal.DRAINING, "draining", 1, 0)
    assert answer.retry_hint_ms >= 5_000


def test_a_full_system_refuses_every_tenant_and_nothing_changes(store, settings):
    reconfigure(store, settings, max_inflight=2)
    beat(store)
    admitted(store, a_job())
    admitted(store, a_job("green"))
    claim_one(store)
    answer = refused(store, a_job("red"))
    assert (answer.reason, answer.limit, answer.value, answer.max) == (Refusal.INFLIGHT_FULL, "inflight", 2, 2)
    assert (answer.inflight, answer.max_inflight) == (2, 2)


def test_a_full_tenant_is_refused_and_nothing_changes_while_another_is_taken(store):
    beat(store)
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


def test_a_tenants_bound_spans_all_its_models(store, settings):
    reconfigure(store, settings, max_queue_size=2)
    beat(store)
    beat(store, "w2", model="n")
    admitted(store, a_job())
    admitted(store, a_job(model="n"))
    assert refused(store, a_job()).reason is Refusal.TENANT_QUEUE_FULL


def test_a_running_job_no_longer_fills_its_tenants_list(store, settings):
    reconfigure(store, settings, max_queue_size=1)
    beat(store)
    admitted(store, a_job())
    claim_one(store)
    assert isinstance(store.admit(a_job()), Admitted)


def test_a_policy_replaces_the_tenants_bounds(store):
    beat(store)
    store.client.hset(keys.tenant("blue"), mapping={"policy": 1, "policy_max_waiting": 1})
    store.client.hset(keys.tenant("green"), mapping={"policy": 1, "policy_max_waiting_tokens": 50})
    admitted(store, a_job())
    admitted(store, a_job("green"))
    assert refused(store, a_job()).max == 1
    answer = refused(store, a_job("green"))
    assert (answer.reason, answer.max) == (Refusal.TENANT_TOKENS_FULL, 50)


def test_a_tenants_tokens_are_bounded_by_prompt_and_answer_together(store, settings):
    reconfigure(store, settings, max_queue_tokens=60)
    beat(store)
    admitted(store, a_job(prompt_tokens=10, max_tokens=20))
    admitted(store, a_job(prompt_tokens=10, max_tokens=20))
    answer = refused(store, a_job(prompt_tokens=1, max_tokens=1))
    assert (answer.reason, answer.limit, answer.value, answer.max) == (
        Refusal.TENANT_TOKENS_FULL,
        "tenant_waiting_tokens",
        60,
        60,
    )


def test_one_job_of_any_size_may_always_wait(store, settings):
    reconfigure(store, settings, max_queue_tokens=60)
    beat(store)
    admitted(store, a_job(prompt_tokens=100_000, max_tokens=1_000))
    assert refused(store, a_job(prompt_tokens=1, max_tokens=1)).reason is Refusal.TENANT_TOKENS_FULL


def test_the_checks_come_in_their_order(store, settings):
    """Everything is wrong at first; what is mended shows the next check."""
    reconfigure(store, settings, max_inflight=1, max_queue_size=1, max_queue_tokens=1)
    beat(store)
    admitted(store, a_job())
    store.client.hset(keys.config(), "draining", "1")
    shift(store, 6_000)
    told = [refused(store, a_job()).reason]
    beat(store)
    told.append(refused(store, a_job()).reason)
    store.client.hdel(keys.config(), "draining")
    told.append(refused(store, a_job()).reason)
    reconfigure(store, settings, max_inflight=2, max_queue_size=1, max_queue_tokens=1)
    told.append(refused(store, a_job()).reason)
    reconfigure(store, settings, max_inflight=2, max_queue_size=2, max_queue_tokens=1)
    told.append(refused(store, a_job()).reason)
    assert told == [
        Refusal.NO_WORKER,
        Refusal.DRAINING,
        Refusal.INFLIGHT_FULL,
        Refusal.TENANT_QUEUE_FULL,
        Refusal.TENANT_TOKENS_FULL,
    ]


def test_automatic_bounds_are_made_of_live_slots(store):
    beat(store, slots=20)
    beat(store, "w2", slots=30)
    snapshot = store.snapshot()
    assert snapshot.max_inflight == 200
    admitted(store, a_job())
    for _ in range(99):
        admitted(store, a_job())
    answer = refused(store, a_job())
    assert (answer.reason, answer.max, answer.max_inflight) == (Refusal.TENANT_QUEUE_FULL, 100, 200)
    shift(store, 5_100)
    beat(store, slots=1)
    assert store.snapshot().max_inflight == 64


@pytest.mark.parametrize("attempt", [0, 1, 2, 3, 9])
def test_a_hint_grows_with_the_attempt_up_to_three_and_stays_within_a_minute(store, attempt):
    hint_ms = refused(store, a_job(), attempt=attempt).retry_hint_ms
    base_ms = 2_000 * 2 ** min(attempt, 3)
    assert base_ms <= hint_ms <= base_ms * 1.2


def test_a_hint_never_lies_below_its_base_whatever_the_client_says_of_itself(store):
    assert refused(store, a_job(), attempt=-5).retry_hint_ms >= 2_000


def test_hints_are_spread_by_the_jobs_id(store):
    ids = [new_job_id() for _ in range(50)]
    first = [refused(store, a_job(id=job_id)).retry_hint_ms for job_id in ids]
    assert first == [refused(store, a_job(id=job_id)).retry_hint_ms for job_id in ids]
    assert len(set(first)) > 25
    assert max(first) - min(first) > 200


@pytest.mark.parametrize(
    ("places", "run_ms", "low", "high"),
    [(4, 1, 50, 50), (4, 4_000, 1_000, 1_200), (1, 4_000, 4_000, 4_800), (4, 10**12, 60_000, 60_000)],
)
def test_the_hint_of_a_full_system_is_the_time_between_two_ends(store, settings, places, run_ms, low, high):
    reconfigure(store, settings, max_inflight=places)
    beat(store, slots=4)
    for number in range(places):
        admitted(store, a_job(f"t{number}"))
    store.client.hset(keys.books(MODEL), "run_ms", run_ms)
    assert low <= refused(store, a_job()).retry_hint_ms <= high


def test_refusals_are_counted_by_tenant_and_reason(store):
    refused(store, a_job())
    assert stat(store, "yielded") == 1
    assert stat(store, "refused|blue|no_worker") == 1
    assert stat(store, "h|retry_hint|2500") == 1


def test_only_the_first_fifty_tenants_get_a_label_of_their_own(store):
    for number in range(52):
        refused(store, a_job(f"t{number}"))
    assert stat(store, "refused|t49|no_worker") == 1
    assert stat(store, "refused|t50|no_worker") == 0
    assert stat(store, "refused|other|no_worker") == 2
    assert store.client.scard(keys.labels()) == 50

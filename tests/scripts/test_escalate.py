"""Tests of escalation: a running job moves to a later pool of its route once, with its books, without an attempt."""

import pytest

from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.job import Usage
from shared.jobs.outcomes import Outcome
from shared.jobs.route import RouteStep
from shared.jobs.routing import Routed
from shared.jobs.states import JobState
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.replies import SettleAnswer
from tests.support.builders import a_job, admitted, advance_clock, an_ending, heartbeat, new_job_id, stat, view_of
from tests.support.routed import SPENT_KEYS, a_route, serve, set_terms, to


def claim_in(store, model):
    """Claim one job in the pool of a model."""
    (job,) = store.claim(f"worker-of-{model}", new_job_id(), model, room=1, cells_free=10**6)
    return job


@pytest.fixture
def route(store):
    """A route from `small` to `big`, each with one worker."""
    serve(store, "small", "big")
    return a_route(store, "small", "big")


def escalating(store, route, **overrides):
    """Admit an escalating job and claim it in `small`."""
    job_id = admitted(store, to(route, escalates=True, **overrides))
    job = claim_in(store, "small")
    assert job.id == job_id
    return job


def test_a_job_moves_with_its_id_its_admission_and_its_deadline(store, route):
    job = escalating(store, route)
    before = view_of(store, job.id)
    advance_clock(store, 100)
    assert store.escalate(an_ending(job.held)) == "big"
    after = view_of(store, job.id)
    assert (after.state, after.model, after.routed) == (JobState.QUEUED, "big", Routed("big", "escalated"))
    assert (after.admitted_ms, after.deadline_at_ms, after.attempts) == (before.admitted_ms, before.deadline_at_ms, 0)
    assert store.client.zrange(keys.order("blue.big"), 0, -1) == [job.id.encode()]
    assert store.client.lrange("rq:queue:blue.big", 0, -1) == [job.id.encode()]
    assert store.client.zcard("rq:wip:blue.small") == 0
    assert [store.client.hget(keys.books("small"), name) for name in ("running", "waiting")] == [b"0", b"0"]
    assert store.client.hget(keys.books("big"), "waiting") == b"1"
    again = claim_in(store, "big")
    assert (again.id, again.model, again.attempt) == (job.id, "big", 1)
    assert store.settle(an_ending(again.held), "worker-of-big").outcome is Outcome.SUCCEEDED


def test_a_job_moves_once(store, route):
    job = escalating(store, route)
    store.escalate(an_ending(job.held))
    second = claim_in(store, "big")
    assert store.escalate(an_ending(second.held)) is None
    assert store.settle(an_ending(second.held), "worker-of-big").outcome is Outcome.SUCCEEDED


def test_the_first_run_counts_in_its_pool(store, route):
    set_terms(store, "small", answer_price_micro=1_000)
    set_terms(store, "big", answer_price_micro=3_000)
    job = escalating(store, route)
    store.escalate(an_ending(job.held, usage=Usage(10, 4, 7)))
    assert stat(store, "tokens|blue|small|completion") == 7
    assert stat(store, "wasted|blue|escalated") == 13
    # 6 prompt tokens that were computed, and 7 generated tokens of weight 4.
    assert store.client.hget(keys.tenant("blue"), keys.service_field("small")) == b"34000"
    (day,) = store.client.keys(SPENT_KEYS)
    assert store.client.hgetall(day) == {b"small": b"7", b"small|blue": b"7", b"big": b"60", b"big|blue": b"60"}
    store.settle(an_ending(claim_in(store, "big").held, usage=Usage(10, 0, 5)), "worker-of-big")
    assert store.client.hgetall(day) == {b"small": b"7", b"small|blue": b"7", b"big": b"15", b"big|blue": b"15"}
    assert store.client.hget(keys.tenant("blue"), keys.service_field("small")) == b"34000"


def test_what_the_first_run_computed_again_after_a_pause_is_waste(store, route):
    job = escalating(store, route)
    store.escalate(an_ending(job.held, usage=Usage(10, 4, 7, again_tokens=5)))
    assert stat(store, "tokens|blue|small|prompt") == 10 + 5
    assert (stat(store, "wasted|blue|escalated"), stat(store, "wasted|blue|retried")) == (13, 5)


def test_a_repeated_call_moves_and_counts_nothing_again(store, route):
    job = escalating(store, route)
    assert [store.escalate(an_ending(job.held)) for _ in range(2)] == ["big", None]
    assert store.settle(an_ending(job.held), "worker-of-small").answer is SettleAnswer.LOST
    assert stat(store, "tokens|blue|small|completion") == 20
    assert view_of(store, job.id).state is JobState.QUEUED


def test_a_job_without_a_later_pool_stays(store):
    serve(store, "small", "big")
    for name, steps, cannot in (
        ("one", ["small"], {}),
        ("unfit", ["small", RouteStep("big", max_prompt=5)], {}),
        ("unable", ["small", "big"], {"big": "features"}),
        ("away", ["small", "nobody"], {}),
    ):
        job = escalating(store, a_route(store, *steps, name=name), cannot=cannot)
        assert store.escalate(an_ending(job.held)) is None, name
        assert store.settle(an_ending(job.held), "worker-of-small").outcome is Outcome.SUCCEEDED


def test_a_job_that_does_not_escalate_stays(store, route):
    admitted(store, to(route))
    job = claim_in(store, "small")
    assert store.escalate(an_ending(job.held)) is None
    store.settle(an_ending(job.held), "worker-of-small")


def test_a_pool_that_takes_no_such_job_now_is_skipped(store):
    serve(store, "small", "cloud", "big")
    route = a_route(store, "small", "away", "cloud", "big")
    set_terms(store, "cloud", answer_price_micro=1_000, day_cap_micro=19)
    assert store.escalate(an_ending(escalating(store, route).held)) == "big"


def test_a_pool_whose_workers_all_drain_is_skipped(store):
    serve(store, "small", "drained", "big")
    route = a_route(store, "small", "drained", "big")
    job = escalating(store, route)
    heartbeat(store, "worker-of-drained", model="drained", draining=True)
    assert store.escalate(an_ending(job.held)) == "big"


@pytest.mark.parametrize("by", ["request", "tenant", "tenant meanwhile"])
def test_a_private_job_moves_only_to_a_local_pool(store, by):
    serve(store, "small", "cloud", "big")
    set_terms(store, "small", local=True)
    if by == "tenant":
        Tenants(store.client).set("blue", TenantPolicy(private=True))
    route = a_route(store, "small", "cloud", "big")
    job = escalating(store, route, private=by == "request")
    if by == "tenant meanwhile":
        Tenants(store.client).set("blue", TenantPolicy(private=True))
    assert store.escalate(an_ending(job.held)) is None
    set_terms(store, "big", local=True)
    assert store.escalate(an_ending(job.held)) == "big"


def test_a_canceled_a_late_and_a_lost_job_stay(store, route):
    job = escalating(store, route)
    store.cancel(job.id)
    assert store.escalate(an_ending(job.held)) is None
    assert store.settle(an_ending(job.held), "worker-of-small").outcome is Outcome.CANCELED
    job = escalating(store, route, deadline_ms=1_000)
    advance_clock(store, 1_001)
    assert store.escalate(an_ending(job.held)) is None
    assert store.settle(an_ending(job.held), "worker-of-small").outcome is Outcome.SUCCEEDED
    serve(store, "small", "big")
    job = escalating(store, route)
    store.release("worker-of-small", [job.held])
    assert store.escalate(an_ending(job.held)) is None
    assert view_of(store, job.id).model == "small"


@pytest.mark.parametrize("stored", ["no json", "{}", "7", "[7]", '[{"slug":"big"}]', '[{"slug":{},"model":[]}]'])
def test_spoiled_later_pools_count_as_no_pools(store, route, stored):
    job = escalating(store, route)
    store.client.hset(f"rq:job:{job.id}", "penstock_later_pools", stored)
    assert store.escalate(an_ending(job.held)) is None
    store.settle(an_ending(job.held), "worker-of-small")


def test_a_job_of_a_group_is_charged_to_it_in_the_first_pool(store, route):

    Groups(store.client).set("team", GroupPolicy())
    Tenants(store.client).set("blue", TenantPolicy(group="team"))
    job = escalating(store, route)
    store.escalate(an_ending(job.held, usage=Usage(10, 0, 5)))
    assert store.client.hget(keys.tenant("@team"), keys.service_field("small")) == b"30000"
    store.settle(an_ending(claim_in(store, "big").held, usage=Usage(10, 0, 5)), "worker-of-big")
    assert store.client.hget(keys.tenant("@team"), keys.service_field("small")) == b"30000"
    assert store.client.hget(keys.tenant("@team"), keys.service_field("big")) == b"30000"


def test_a_job_moves_to_a_pool_without_a_free_slot(store, route):
    for model in ("small", "big"):
        serve(store, model, slots=1)
    admitted(store, a_job(model="big"))
    running = claim_in(store, "big")
    job = escalating(store, route)
    assert store.escalate(an_ending(job.held)) == "big"
    assert stat(store, f"routed|{route.name}|big|escalated") == 1
    assert store.settle(an_ending(running.held), "worker-of-big").outcome is Outcome.SUCCEEDED


def test_a_job_does_not_move_to_a_pool_where_it_may_cost_more_than_the_route_allows(store):
    serve(store, "small", "dear", "big")
    set_terms(store, "dear", answer_price_micro=1_000)
    route = a_route(store, "small", RouteStep("dear", max_price_micro=19), "big")
    assert store.escalate(an_ending(escalating(store, route).held)) == "big"


def test_the_tenants_privacy_at_the_move_holds_until_the_claim(store, route):
    job = escalating(store, route)
    Tenants(store.client).set("blue", TenantPolicy(private=True))
    set_terms(store, "big", local=True)
    assert store.escalate(an_ending(job.held)) == "big"
    set_terms(store, "big", local=False)
    assert store.claim("worker-of-big", new_job_id(), "big", room=1, cells_free=10**6) == []
    assert view_of(store, job.id).code == "not_local"

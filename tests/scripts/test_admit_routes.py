"""Tests of routes: which of a route's pools takes a job, why, and who is refused."""

import pytest

from shared.accounts.routes import Routes
from shared.accounts.tenants import Tenants
from shared.jobs.outcomes import Refusal
from shared.jobs.route import Route, RouteStep
from shared.jobs.routing import Routed
from shared.jobs.states import JobState
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.replies import Admitted, RouteChanged
from tests.support.builders import a_job, admitted, claim, claim_one, heartbeat, reconfigure, refused, stat, view_of
from tests.support.routed import a_route, serve, set_terms, to

#: A slow machine must not make the workers' heartbeats old while a test runs.
pytestmark = pytest.mark.usefixtures("clock")

DAY_MS = 86_400_000


def routed(store, job) -> Routed | None:
    """Offer a job that must be admitted; return how it was routed."""
    view = view_of(store, admitted(store, job))
    assert view.routed is None or view.routed.pool == view.model
    return view.routed


def test_the_first_pool_that_takes_a_job_gets_it_with_its_queue_and_its_sums(store):
    serve(store, "near", "far")
    route = a_route(store, "near", "far")
    job = to(route)
    assert routed(store, job) == Routed("near", "first")
    assert store.client.zrange(keys.order("blue.near"), 0, -1) == [job.id.encode()]
    assert store.client.lrange("rq:queue:blue.near", 0, -1) == [job.id.encode()]
    assert store.client.hget(keys.books("near"), "waiting") == b"1"
    assert store.client.hget(f"rq:job:{job.id}", "origin") == b"blue.near"
    assert not store.client.exists(keys.books("smart"))
    assert stat(store, "routed|smart|near|first") == 1


def test_a_job_spills_to_the_next_pool_only_while_the_first_would_refuse_it(store, settings):
    reconfigure(store, settings, admission="bounds", max_queue_size=1)
    serve(store, "near", "far")
    set_terms(store, "far", prompt_price_micro=1)
    route = a_route(store, "near", "far")
    store.client.hset(keys.config(), "max_inflight", 3)
    assert [routed(store, to(route, f"t{n}")) for n in range(2)] == [Routed("near", "first")] * 2
    assert routed(store, to(route, "t2")) == Routed("far", "spill")
    assert refused(store, to(route, "t3")).reason is Refusal.INFLIGHT_FULL


def test_without_a_worker_of_the_first_pool_jobs_spill(store):
    serve(store, "far")
    assert routed(store, to(a_route(store, "near", "far"))) == Routed("far", "spill")


def test_if_no_pool_has_a_worker_the_refusal_is_that_of_a_pool(store):
    answer = refused(store, to(a_route(store, "near", "far")))
    assert (answer.reason, answer.hopeless) == (Refusal.NO_WORKER, False)


def test_a_repeated_offer_finds_its_job_and_its_place(store):
    serve(store, "near")
    route = a_route(store, "near")
    jobs = [to(route), to(route, deadline_ms=61_000)]
    assert [store.admit(job).position for job in jobs] == [1, 2]
    again = store.admit(jobs[1])
    assert again == Admitted(jobs[1].id, again=True, position=2, inflight=2)
    assert stat(store, "routed|smart|near|first") == 2


@pytest.mark.parametrize("text", ['{"pools":[{"pool":"far"}]}', "no json", None])
def test_a_route_that_was_changed_since_the_door_read_it_admits_nothing(store, text):
    serve(store, "near", "far")
    route = a_route(store, "near")
    Routes(store.client).remove(route.name)
    if text is not None:
        store.client.hset(keys.routes(), route.name, text)
    assert store.admit(to(route)) == RouteChanged()
    assert store.overview().inflight == 0


def test_a_key_of_another_type_in_the_place_of_the_routes_admits_nothing(store):
    serve(store, "near")
    route = a_route(store, "near")
    store.client.delete(keys.routes())
    store.client.set(keys.routes(), "spoiled")
    assert store.admit(to(route)) == RouteChanged()
    store.client.delete(*store.client.keys("penstock:spoiled:*"))


@pytest.mark.parametrize(
    ("step", "job", "why"),
    [
        (RouteStep("near", max_prompt=99), {"prompt_tokens": 100}, "size"),
        (RouteStep("near", min_prompt=11), {}, "size"),
        (RouteStep("near", max_answer=19), {}, "size"),
        (RouteStep("near", features=("schema",)), {"features": ("tools", "schema")}, "features"),
        (RouteStep("near", features=()), {"features": ("images",)}, "features"),
        (RouteStep("near"), {"cannot": {"near": "size"}}, "size"),
        (RouteStep("near", max_price_micro=29), {}, "price"),
    ],
)
def test_a_pool_whose_condition_a_job_does_not_meet_is_passed_over(store, step, job, why):
    serve(store, "near", "far")
    set_terms(store, "near", prompt_price_micro=1_000, answer_price_micro=1_000)
    route = a_route(store, step, "far")
    assert routed(store, to(route, **job)) == Routed("far", why)
    answer = refused(store, to(a_route(store, step, name="alone"), **job))
    assert (answer.reason, answer.limit, answer.hopeless) == (Refusal.NO_SUITABLE_POOL, why, True)


@pytest.mark.parametrize(
    ("step", "job"),
    [
        (RouteStep("near", max_prompt=100), {"prompt_tokens": 100}),
        (RouteStep("near", min_prompt=10, max_answer=20), {}),
        (RouteStep("near", features=("schema", "tools")), {"features": ("tools", "schema")}),
        (RouteStep("near", features=()), {}),
        (RouteStep("near", max_price_micro=30), {}),
        (RouteStep("near", end_within=1), {}),
    ],
)
def test_a_pool_whose_conditions_a_job_meets_takes_it(store, step, job):
    serve(store, "near", "far")
    set_terms(store, "near", prompt_price_micro=1_000, answer_price_micro=1_000)
    assert routed(store, to(a_route(store, step, "far"), **job)) == Routed("near", "first")


def test_a_job_whose_predicted_end_is_beyond_its_part_of_the_deadline_goes_to_the_next_pool(store, settings):
    reconfigure(store, settings, admission="bounds")
    serve(store, "slow", "fast", mu_wtps=100, prefill_tps=100, tpot_ms=100)
    route = a_route(store, RouteStep("slow", end_within=5_000), "fast")
    # 100 ms for the prompt and 2,000 ms for the answer.
    assert routed(store, to(route, deadline_ms=4_300)) == Routed("slow", "first")
    assert routed(store, to(route, "red", deadline_ms=4_100)) == Routed("fast", "deadline")


@pytest.mark.parametrize(
    ("windows", "minute", "why"),
    [
        (((60, 120),), 60, "first"),
        (((60, 120),), 119, "first"),
        (((60, 120),), 120, "window"),
        (((1_320, 360),), 0, "first"),
        (((1_320, 360),), 1_400, "first"),
        (((1_320, 360),), 360, "window"),
        (((0, 1_440),), 1_439, "first"),
        (((60, 120), (600, 660)), 600, "first"),
        (((60, 120), (600, 660)), 300, "window"),
    ],
)
def test_windows_are_times_of_day_in_utc_by_the_stores_clock(store, windows, minute, why):
    store.client.set(keys.clock(), f"={1_800_057_600_000 + minute * 60_000}")
    serve(store, "day", "night")
    pool = "day" if why == "first" else "night"
    assert routed(store, to(a_route(store, RouteStep("day", windows=windows), "night"))) == Routed(pool, why)


def test_a_refusal_by_a_window_says_when_it_opens(store):
    store.client.set(keys.clock(), f"={1_800_057_600_000 + 60_000 * 119 + 30_000}")
    serve(store, "day")
    answer = refused(store, to(a_route(store, RouteStep("day", windows=((120, 121),)))))
    assert (answer.limit, answer.hopeless) == ("window", False)
    assert 30_000 <= answer.retry_hint_ms <= 36_000


def test_a_share_gets_its_part_of_the_jobs_by_their_ids(store):
    serve(store, "new", "old", slots=400)
    route = a_route(store, RouteStep("new", share=2_000), "old")
    jobs = [to(route, id=f"job{number}") for number in range(200)]
    found = [routed(store, job) for job in jobs]
    assert set(found) == {Routed("new", "canary"), Routed("old", "first")}
    assert 20 <= found.count(Routed("new", "canary")) <= 60


# Private requests.


def test_a_private_job_goes_past_pools_that_are_not_local(store):
    serve(store, "cloud", "cellar")
    set_terms(store, "cellar", local=True)
    route = a_route(store, "cloud", "cellar")
    assert routed(store, to(route, private=True)) == Routed("cellar", "private")
    assert routed(store, to(route)) == Routed("cloud", "first")


def test_a_private_job_waits_rather_than_spilling_to_a_pool_that_is_not_local(store, settings):
    reconfigure(store, settings, admission="bounds", max_inflight=1)
    serve(store, "cellar", "cloud")
    set_terms(store, "cellar", local=True)
    route = a_route(store, "cellar", "cloud")
    assert routed(store, to(route, private=True)) == Routed("cellar", "first")
    answer = refused(store, to(route, "red", private=True))
    assert (answer.reason, answer.hopeless) == (Refusal.INFLIGHT_FULL, False)


@pytest.mark.parametrize("by", ["request", "tenant"])
def test_a_private_request_that_names_a_pool_which_is_not_local_is_refused(store, by):
    serve(store, "m")
    if by == "tenant":
        Tenants(store.client).set("blue", TenantPolicy(private=True))
    answer = refused(store, a_job(private=by == "request"))
    assert (answer.reason, answer.limit, answer.hopeless) == (Refusal.NO_SUITABLE_POOL, "private", True)
    set_terms(store, "m", local=True)
    admitted(store, a_job(private=by == "request"))


def test_a_pool_without_a_worker_that_is_not_local_is_no_place_for_a_private_job_either(store):
    answer = refused(store, to(a_route(store, "cloud", "moon"), private=True))
    assert answer.reason is Refusal.NO_SUITABLE_POOL


def test_a_spoiled_mark_is_no_mark(store):
    serve(store, "m")
    store.client.hset(keys.books("m"), "policy_local", "yes")
    assert refused(store, a_job(private=True)).reason is Refusal.NO_SUITABLE_POOL


def test_a_private_job_does_not_reach_a_pool_that_has_lost_its_mark(store):
    heartbeat(store)
    set_terms(store, "m", local=True)
    running = admitted(store, a_job(private=True))
    held = claim_one(store).held
    queued, other = admitted(store, a_job("red", private=True)), admitted(store, a_job("green"))
    set_terms(store, "m", local=False)
    store.release("w1", [held])
    assert [job.id for job in claim(store, room=4)] == [other]
    for job_id in (queued, running):
        assert (view_of(store, job_id).state, view_of(store, job_id).code) == (JobState.CANCELED, "not_local")


# Costs of jobs.


def test_a_cap_refuses_jobs_that_could_exceed_it_until_the_next_day(store):
    store.client.set(keys.clock(), f"={1_800_057_600_000 + DAY_MS - 40_000}")
    serve(store, "cloud")
    set_terms(store, "cloud", prompt_price_micro=1_000, answer_price_micro=2_000, day_cap_micro=149)
    route = a_route(store, "cloud")
    assert [routed(store, to(route, name)) for name in ("a", "b")] == [Routed("cloud", "first")] * 2
    answer = refused(store, to(route, "c"))
    assert (answer.reason, answer.limit, answer.value, answer.max) == (
        Refusal.BUDGET_EXHAUSTED,
        "spent_today",
        100,
        149,
    )
    assert 40_000 <= answer.retry_hint_ms <= 48_000
    assert refused(store, a_job("d", model="cloud", cost_mwt=None)).reason is Refusal.BUDGET_EXHAUSTED
    store.client.set(keys.clock(), f"={1_800_057_600_000 + DAY_MS}")
    serve(store, "cloud")
    assert routed(store, to(route, "c")) == Routed("cloud", "first")


def test_a_job_goes_past_a_pool_whose_cap_is_reached(store):
    serve(store, "cloud", "cellar")
    set_terms(store, "cloud", answer_price_micro=1_000, day_cap_micro=0)
    assert routed(store, to(a_route(store, "cloud", "cellar"))) == Routed("cellar", "budget")


def test_a_spoiled_cap_allows_nothing_that_costs(store):
    serve(store, "cloud")
    set_terms(store, "cloud", answer_price_micro=1_000, day_cap_micro=10**6)
    store.client.hset(keys.books("cloud"), "policy_day_cap_micro", "much")
    assert refused(store, a_job(model="cloud")).reason is Refusal.BUDGET_EXHAUSTED


def test_a_route_of_eight_pools_is_searched_to_its_end(store):
    pools = [f"p{number}" for number in range(8)]
    serve(store, pools[-1])
    assert routed(store, to(a_route(store, *pools))) == Routed("p7", "spill")


def test_jobs_of_a_removed_route_continue(store):
    serve(store, "near")
    route = a_route(store, "near")
    job_id = admitted(store, to(route))
    assert Routes(store.client).remove(route.name)
    assert view_of(store, job_id).routed == Routed("near", "first")
    assert Route(route.name, route.steps) == route

"""Tests of quotes for routes: they name the pool that an offer would be admitted in, or the refusal it would get."""

import random

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.job import NewJob
from shared.jobs.outcomes import Refusal, Refused
from shared.jobs.route import RouteStep
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.replies import Quote, RouteChanged
from shared.store.store import Store
from tests.support.builders import admitted, contents, new_job_id, reconfigure, view_of
from tests.support.routed import a_route, serve, set_terms, to

#: A slow machine must not make the workers' heartbeats old while a test runs.
pytestmark = pytest.mark.usefixtures("clock")

RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}


def quote(store: Store, job: NewJob) -> Quote:
    """Return the quote for a job, which changes nothing in the store."""
    before = contents(store)
    answer = store.quote(job)
    assert contents(store) == before
    assert isinstance(answer, Quote)
    return answer


def pool_of(quoted: Quote) -> tuple[str, str]:
    assert quoted.pool is not None
    return quoted.pool.model, quoted.why


def test_a_quote_names_the_pool_with_its_cost_and_its_end(store):
    serve(store, "near", "far", **RATES)
    set_terms(store, "far", prompt_price_micro=1_000, answer_price_micro=2_000)
    route = a_route(store, RouteStep("near", max_prompt=9), "far")
    quoted = quote(store, to(route, max_tokens=20))
    assert pool_of(quoted) == ("far", "size")
    # The prompt's 10 tokens take 10 ms, and 20 tokens 400 ms; together they can cost 10 + 2 · 20.
    assert (quoted.eta_ms, quoted.cost_mwt, quoted.max_cost_micro) == (410, 90_000, 50)
    assert quote(store, to(route, prompt_tokens=9)).max_cost_micro == 0


def test_a_quote_says_when_a_job_would_spill(store, settings):
    reconfigure(store, settings, admission="bounds", max_queue_size=1)
    serve(store, "near", "far")
    route = a_route(store, RouteStep("near", windows=((0, 1),)), "far")
    assert pool_of(quote(store, to(route))) == ("far", "window")
    route = a_route(store, "absent", "far", name="other")
    assert pool_of(quote(store, to(route))) == ("far", "spill")


@pytest.mark.parametrize("by", ["request", "tenant"])
def test_a_private_job_is_quoted_for_local_pools_only(store, by):
    serve(store, "cloud", "cellar")
    if by == "tenant":
        Tenants(store.client).set("blue", TenantPolicy(private=True))
    route = a_route(store, "cloud", "cellar")
    answer = quote(store, to(route, private=by == "request"))
    assert answer.refused is not None
    assert answer.refused.reason is Refusal.NO_SUITABLE_POOL
    assert answer.why == ""
    set_terms(store, "cellar", local=True)
    assert pool_of(quote(store, to(route, private=by == "request"))) == ("cellar", "private")


@pytest.mark.parametrize("text", ["{}", None])
def test_a_route_that_has_changed_is_not_quoted(store, text):
    serve(store, "near")
    route = a_route(store, "near")
    if text is None:
        store.client.hdel(keys.routes(), route.name)
    else:
        store.client.hset(keys.routes(), route.name, text)
    assert isinstance(store.quote(to(route)), RouteChanged)


@pytest.mark.parametrize("seed", range(4))
def test_a_quote_is_what_an_offer_of_the_same_job_gets(store, settings, seed):
    """Drawn routes and jobs, offered one after the other, so that the pools fill."""
    rng = random.Random(seed)
    reconfigure(store, settings, max_inflight=rng.choice([6, 64]), max_queue_size=rng.choice([2, 16]))
    names = ["one", "two", "three"]
    serve(store, *rng.sample(names, 2), slots=1, **(RATES if rng.random() < 0.7 else {}))
    for name in names:
        terms = {"local": rng.random() < 0.5, "prompt_price_micro": rng.choice([0, 10_000])}
        set_terms(store, name, **terms, **({"day_cap_micro": 500} if rng.random() < 0.4 else {}))
    conditions = [
        {"max_prompt": 15},
        {"min_prompt": 15},
        {"share": 5_000},
        {"max_price_micro": 150},
        {"end_within": 900},
    ]
    for number in range(24):
        steps = [RouteStep(name, **rng.choice([{}, *conditions])) for name in names[:2]] + [RouteStep("three")]
        sizes = {"prompt_tokens": rng.choice([10, 20]), "max_tokens": rng.choice([20, 200])}
        deadline_ms, is_private = rng.choice([4_000, 60_000]), rng.random() < 0.2
        tenant, route = rng.choice(["blue", "red"]), a_route(store, *steps, name=f"route{number}")
        job = to(route, tenant, id=new_job_id(), deadline_ms=deadline_ms, private=is_private, **sizes)
        quoted = quote(store, job)
        offered = store.admit(job)
        if isinstance(offered, Refused):
            assert quoted.refused is not None
            assert (quoted.refused.reason, quoted.refused.limit) == (offered.reason, offered.limit)
            continue
        assert quoted.refused is None
        view = view_of(store, job.id)
        assert view.routed is not None
        assert pool_of(quoted) == (view.routed.pool, view.routed.why)
        if quoted.eta_ms is not None:
            assert view.eta_at_ms is not None
            assert view.eta_at_ms - view.admitted_ms == quoted.eta_ms
        assert int(store.client.hget(keys.rq_job(job.id), "penstock_cost_mwt") or 0) == quoted.cost_mwt


def test_the_share_of_a_route_is_decided_by_the_id_in_quotes_and_offers(store):
    serve(store, "new", "old")
    route = a_route(store, RouteStep("new", share=5_000), "old")
    jobs = [to(route) for _ in range(12)]
    assert [pool_of(quote(store, job))[0] for job in jobs] == [
        view_of(store, admitted(store, job)).model for job in jobs
    ]

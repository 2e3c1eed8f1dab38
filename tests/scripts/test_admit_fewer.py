"""Tests that a job which would be refused for its passages is admitted with fewer of them, in the same call."""

import json
from dataclasses import replace
from typing import Any

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.job import FewerPassages, NewJob
from shared.jobs.route import RouteStep
from shared.jobs.routing import Routed
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.replies import Admitted
from tests.support.builders import a_heartbeat, a_job, admitted, claim_one, contents, refused, stat, view_of
from tests.support.pressure import HeldPool, a_quiet_pool, raise_tier
from tests.support.routed import a_route, serve, to

#: The payload and the form of a job with all of its passages, and with half of them.
ALL, HALF = {"prompt": "question and 8 passages"}, {"prompt": "question and 4 passages"}
FORM, HALF_FORM = {"retrieval": "8"}, {"retrieval": "4"}


def with_passages(job: NewJob, fewer_tokens: int = 100, *, under_overload: bool = False) -> NewJob:
    """Return the job with 8 passages, and a second choice of 4."""
    job = replace(job, payload=ALL, request=job.request.replaced(form=FORM))
    if job.routing is not None:
        pools = tuple(replace(pool, fewer_tokens=fewer_tokens) for pool in job.routing.pools)
        job = replace(job, routing=replace(job.routing, pools=pools))
    return replace(job, fewer=FewerPassages(HALF, fewer_tokens, HALF_FORM, under_overload))


def a_job_with_passages(tokens: int = 1_000, **overrides: Any) -> NewJob:
    return with_passages(a_job(prompt_tokens=tokens, **({"cost_mwt": None} | overrides)))


@pytest.fixture
def pool(store):
    """A pool that reads 1,000 prompt tokens a second, with three free slots: in an idle one any job is a probe."""
    store.renew(a_heartbeat(facts={"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 1}), [])
    admitted(store, a_job("filler"))
    claim_one(store)
    return store


def admitted_with(store, job: NewJob) -> tuple[str, int, dict[str, Any], dict[str, Any]]:
    """Offer a job that must be admitted; return why it has fewer passages, its tokens, form and payload."""
    answer = store.admit(job)
    assert isinstance(answer, Admitted), answer
    view, payload = view_of(store, answer.id), json.loads(store.client.get(keys.payload(answer.id)))
    assert answer.view is not None
    assert replace(answer.view, head_ms=view.head_ms) == replace(view, ahead_tokens=answer.view.ahead_tokens)
    return view.fewer, view.prompt_tokens, view.form, payload


def test_a_job_that_can_be_admitted_has_all_passages(pool):
    assert admitted_with(pool, a_job_with_passages()) == ("", 1_000, FORM, ALL)
    assert stat(pool, "degraded|blue|passages") == 0


def test_a_job_that_would_end_too_late_has_fewer(pool):
    assert admitted_with(pool, a_job_with_passages(deadline_ms=600)) == ("deadline", 100, HALF_FORM, HALF)
    assert stat(pool, "degraded|blue|passages") == 1
    assert stat(pool, "yielded") == 0


def test_a_job_that_would_be_too_late_even_with_fewer_is_refused_as_with_all(pool):
    answer = refused(pool, a_job_with_passages(deadline_ms=60))
    whole = refused(pool, replace(a_job_with_passages(deadline_ms=60), fewer=None))
    assert (answer.reason, answer.limit, answer.value) == (whole.reason, whole.limit, whole.value)
    assert stat(pool, "yielded") == 2


def test_a_job_that_would_exceed_a_budget_of_tokens_has_fewer(pool):
    Tenants(pool.client).set("blue", TenantPolicy(tokens_per_day=500))
    assert admitted_with(pool, a_job_with_passages())[:2] == ("tokens", 100)


def test_a_job_that_would_exceed_the_tokens_of_its_queue_has_fewer(pool):
    Tenants(pool.client).set("blue", TenantPolicy(max_waiting_tokens=500))
    admitted(pool, a_job())
    assert admitted_with(pool, a_job_with_passages())[:2] == ("tokens", 100)


def test_a_job_that_would_exceed_the_bytes_of_its_tenant_has_fewer(pool):
    admitted(pool, a_job())
    Tenants(pool.client).set("blue", TenantPolicy(max_bytes=65_536))
    job = a_job_with_passages()
    assert admitted_with(pool, replace(job, payload={"prompt": "x" * 65_536}))[0] == "bytes"


def test_a_refusal_that_no_shorter_prompt_averts_is_not_tried_twice(store):
    assert refused(store, a_job_with_passages()).reason == "no_worker"


def test_a_repetition_gets_the_first_job_whatever_was_found_for_it(pool):
    job = a_job_with_passages(deadline_ms=600, idem_digest="d", body_digest="b")
    first = pool.admit(job)
    before = contents(pool)
    again = pool.admit(with_passages(a_job(idem_digest="d", body_digest="b", deadline_ms=60_000)))
    assert isinstance(first, Admitted)
    assert isinstance(again, Admitted)
    assert (again.id, again.again, contents(pool)) == (first.id, True, before)


def test_a_route_is_tried_with_all_passages_before_it_is_with_fewer(store):
    serve(store, "near", "far")
    small_first = a_route(store, RouteStep("near", max_prompt=500), "far", name="small-first")
    job = with_passages(to(small_first, prompt_tokens=1_000))
    assert admitted_with(store, job)[:2] == ("", 1_000)
    assert view_of(store, job.id).routed == Routed("far", "size")
    only_small = a_route(store, RouteStep("near", max_prompt=500), RouteStep("far", max_prompt=600), name="only-small")
    job = with_passages(to(only_small, prompt_tokens=1_000))
    assert admitted_with(store, job)[:2] == ("size", 100)
    assert view_of(store, job.id).routed == Routed("near", "first")


@pytest.fixture
def pressed(store, settings) -> HeldPool:
    """A pool at tier 1, whose slots are taken."""
    held = a_quiet_pool(store, settings)
    raise_tier(held)
    return held


@pytest.mark.parametrize(("under_overload", "why"), [(True, "tier 1"), (False, "")])
def test_under_overload_the_jobs_of_a_tenant_that_opted_in_have_fewer(pressed, under_overload, why):
    job = with_passages(a_job("green", deadline_ms=60_000, cost_mwt=None), 5, under_overload=under_overload)
    assert admitted_with(pressed.store, job)[0] == why

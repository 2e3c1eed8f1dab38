"""Tests that the answer of admit has all fields that the job's view needs."""

from dataclasses import replace
from typing import Any

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.route import RouteStep
from shared.jobs.tenant_policy import TenantPolicy
from shared.store.replies import Admitted
from tests.support.builders import MODEL, a_heartbeat, a_job, admitted, an_ending, claim_one, view_of
from tests.support.routed import a_route, serve, set_terms, to

RATES = {"mu_wtps": 40, "prefill_tps": 40, "tpot_ms": 500}


def admit(store, job) -> Admitted:
    """Offer a job, and compare the view in the answer with one that is read later."""
    answer = store.admit(job)
    assert isinstance(answer, Admitted)
    assert answer.view is not None
    assert answer.view == replace(view_of(store, job.id), now_ms=answer.view.now_ms)
    assert (answer.view.admitted_ms, answer.view.position) == (answer.view.now_ms, answer.position)
    return answer


@pytest.mark.passing_time
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"metadata": {"a": "ü"}, "form": {"api": "x", "n": [1]}, "callback_url": "https://example.com/"},
        {"priority": 1, "poll_grace_ms": 2_000, "deadline_source": "body", "start_within_ms": 900},
        {"priority": -1, "keeps_request": True, "traceparent": "00-a", "key_label": "ci", "private": True},
        {"payload": {"prompt": "x", "n": 4}, "degrade": True, "idem_digest": "i", "supersede_digest": "s"},
        {"prompt_tokens": 1_665, "deadline_ms": 50_000, "longest_deadline_ms": 600_000, "cost_mwt": None},
    ],
)
@pytest.mark.parametrize("policy", [TenantPolicy(), TenantPolicy(private=True, degrade=True)])
def test_the_view_of_an_admitted_job_is_the_one_that_would_be_read(
    store, fields: dict[str, Any], policy: TenantPolicy
) -> None:
    Tenants(store.client).set("blue", policy)
    set_terms(store, MODEL, local=True)
    store.renew(a_heartbeat(slots=4, cells=100_000, facts=RATES), [])
    admitted(store, a_job())
    store.settle(an_ending(claim_one(store).held), "w1")
    assert admit(store, a_job(**fields)).view.ahead_tokens == 0
    # Each further job waits behind the earlier ones.
    for number in range(3):
        assert admit(store, a_job(**fields | {"supersede_digest": None, "idem_digest": None})).position == number + 2


def test_the_view_of_a_routed_job_names_its_pool_and_why(store) -> None:
    serve(store, "near", "far")
    route = a_route(store, RouteStep("near", max_prompt=9), "far")
    answer = admit(store, to(route, max_tokens=20))
    assert (answer.view.model, answer.view.routed.why) == ("far", "size")


def test_a_repeated_offer_has_no_view_because_its_job_may_have_changed(store) -> None:
    store.renew(a_heartbeat(), [])
    job = a_job()
    admit(store, job)
    again = store.admit(job)
    assert isinstance(again, Admitted)
    assert (again.again, again.view) == (True, None)

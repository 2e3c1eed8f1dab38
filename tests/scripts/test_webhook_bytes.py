"""Tests that admission reserves what the webhook of a job's end will take, so that a tenant's bound is kept."""

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.outcomes import Refusal, Refused
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.replies import Admitted
from tests.support.builders import a_job, admitted, an_ending, claim_one, heartbeat

URL = "https://example.com/hook"


@pytest.fixture(autouse=True)
def worker(store) -> None:
    heartbeat(store)


@pytest.mark.parametrize("bound", range(30_000, 50_000, 2_000))
def test_what_a_tenant_s_webhooks_take_is_reserved_when_its_jobs_are_admitted(store, bound):
    """The bound is kept although no webhook can be delivered, whatever the client has sent and the answers hold."""
    texts = {"metadata": '"' * 300}
    Tenants(store.client).set("blue", TenantPolicy(max_bytes=bound))
    admitted_jobs = 0
    while isinstance(answer := store.admit(a_job(callback_url=URL, form=texts, max_tokens=60)), Admitted):
        admitted_jobs += 1
        store.settle(an_ending(claim_one(store).held, text="\n" * 240), "w1")
    assert (answer.reason, admitted_jobs > 1) == (Refusal.TENANT_BYTES_FULL, True)
    assert int(store.client.hget(keys.kept("blue"), "ended")) <= bound


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_jobs_that_run_at_once_do_not_reserve_the_same_bytes_for_their_webhooks(store, at_once):
    first = store.admit(a_job(callback_url=URL))
    assert isinstance(first, Admitted)
    each = int(store.client.hget(keys.kept("blue"), "live"))
    Tenants(store.client).set("blue", TenantPolicy(max_bytes=at_once * each))
    for _ in range(at_once - 1):
        admitted(store, a_job(callback_url=URL))
    assert isinstance(store.admit(a_job(callback_url=URL)), Refused)
    for _ in range(at_once):
        store.settle(an_ending(claim_one(store).held, text="x" * 80), "w1")
    live, ended = store.client.hmget(keys.kept("blue"), "live", "ended")
    assert (int(live), int(ended) <= at_once * each) == (0, True)

"""The watch of keys in use asks the store about all of them at once."""

from dataclasses import replace

import pytest

from shared.accounts.api_keys import ApiKeys
from shared.accounts.key_record import digest_of
from shared.accounts.tenants import Tenants
from shared.errors import StoreUnavailable
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from web.runtime.accounts import Accounts, ask_one
from web.runtime.credentials.key_watch import KeyWatch

TENANTS = 300


@pytest.fixture
def watch(redis_client, monkeypatch) -> KeyWatch:
    # Only the tests make passes.
    monkeypatch.setattr("web.runtime.credentials.key_watch._INTERVAL_S", 3_600)
    return KeyWatch(ask_one(Accounts.of_store(redis_client)))


def _reads(redis_client) -> int:
    """How often the store has read from a connection; what is sent together is read together."""
    return redis_client.info("stats")["total_reads_processed"]


def test_a_pass_over_hundreds_of_tenants_takes_a_few_round_trips(redis_client, watch):
    tenants = Tenants(redis_client)
    digest = digest_of(ApiKeys(redis_client).create("blue").key)
    uses = [watch.watch(digest, f"t{index}") for index in range(TENANTS)]
    for index in range(0, TENANTS, 10):
        tenants.set(f"t{index}", TenantPolicy(disabled=index % 20 == 0, weight=2))
    before = _reads(redis_client)
    watch.one_pass()
    assert _reads(redis_client) - before < 20
    assert [use.tenant for use in uses if use.ended] == [f"t{index}" for index in range(0, TENANTS, 20)]
    assert {use.problem.code for use in uses if use.problem} == {"tenant_disabled"}


def test_more_tenants_than_fit_into_one_pipeline_are_all_checked(redis_client, watch, monkeypatch):
    monkeypatch.setattr("shared.accounts.tenants._MAX_PIPELINED", 7)
    uses = [watch.watch("", f"t{index}") for index in range(20)]
    for use in uses:
        Tenants(redis_client).set(use.tenant, TenantPolicy(disabled=True))
    watch.one_pass()
    assert all(use.ended for use in uses)


def test_a_tenant_without_a_policy_is_not_disabled_and_a_spoiled_record_ends_nothing(redis_client, watch):
    uses = [watch.watch("", name) for name in ("none", "spoiled", "wrong", "disabled")]
    redis_client.hset(keys.tenant("none"), "policy_disabled", "1")
    redis_client.hset(keys.tenant("spoiled"), mapping={"policy": 1, "policy_weight_milli": "abc"})
    redis_client.set(keys.tenant("wrong"), "no hash")
    Tenants(redis_client).set("disabled", TenantPolicy(disabled=True))
    watch.one_pass()
    assert [use.tenant for use in uses if use.ended] == ["disabled"]


def test_while_the_store_does_not_answer_no_use_ends(redis_client):
    away = redis_client.__class__(host="127.0.0.1", port=1, retry=None)
    accounts = Accounts.of_store(redis_client)
    watch = KeyWatch(ask_one(replace(accounts, tenants=Tenants(away))))
    use = watch.watch("", "blue")
    with pytest.raises(StoreUnavailable):
        watch.one_pass()
    assert not use.ended

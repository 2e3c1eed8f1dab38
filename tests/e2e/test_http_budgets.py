"""A tenant's budget at the door: what a client whose budget is exhausted gets on each kind of route and on the gate."""

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.door import a_door, admitted_job, job_of, post_response, refused, run_next, serve, settle, submit
from tests.support.gate import served, submit_frame

#: 2027-01-15, 12:00 UTC.
NOON_MS = 1_800_014_400_000
RESETS_AT = "2027-01-16T00:00:00Z"


@pytest.fixture
def midday(store: Store) -> Store:
    """The store at noon, with a live worker; `default` may use 60 tokens a day."""
    store.client.set(keys.clock(), f"={NOON_MS}")
    serve(store)
    Tenants(store.client).set("default", TenantPolicy(tokens_per_day=60))
    return store


def test_every_route_refuses_what_could_exceed_the_budget_and_says_what_is_left(
    midday: Store, settings: Settings
) -> None:
    door = a_door(midday, settings)
    admitted_job(submit(door, prompt="Once", max_tokens=40))
    used = 40 + job_tokens(midday)
    answers = (
        submit(door),
        post_response(door),
        door.post("/v1/completions", json={"model": "m", "prompt": "hello", "max_tokens": 20}),
        door.post("/v1/chat/completions", json={"model": "m", "messages": [{"role": "user", "content": "hello"}]}),
    )
    for answer in answers:
        body = refused(answer, "budget_exhausted", 429)
        assert body["retry_hint_ms"] == 60_000
        assert answer.headers["x-should-retry"] == "false"
        assert (body["limits"]["limit"], body["limits"]["value"], body["limits"]["max"]) == (
            "tenant_tokens_per_day",
            used,
            60,
        )
        assert body["limits"]["resets_at"] == RESETS_AT
        assert f"tenant 'default' has {60 - used} of 60 tokens a day left until {RESETS_AT}" in body["error"]["message"]
    quote = door.post("/v1/quote", json={"prompt": "hello", "max_tokens": 20}).get_json()
    assert (quote["verdict"], quote["refusal"]["limits"]["resets_at"]) == ("yield", RESETS_AT)


def job_tokens(store: Store) -> int:
    """Return how many prompt tokens the only inflight job is estimated to have."""
    (raw,) = store.client.zrange(keys.inflight(), 0, -1)
    return int(store.client.hget(keys.rq_job(raw.decode()), "penstock_prompt_tokens"))


def test_the_gate_refuses_as_the_door_does(midday: Store, settings: Settings) -> None:
    with served(midday, settings) as gate:
        answer = gate.client.ask(submit_frame("a1", tenant="default", max_tokens=60))
    assert (answer["status"], answer["reason"], answer["retry_hint_ms"]) == ("yield", "budget_exhausted", 60_000)
    assert answer["limits"]["resets_at"] == RESETS_AT


def test_tokens_that_a_job_did_not_use_can_be_used_by_the_next_one(midday: Store, settings: Settings) -> None:
    door = a_door(midday, settings)
    job = admitted_job(submit(door, max_tokens=50))
    refused(submit(door, max_tokens=20), "budget_exhausted", 429)
    settle(midday, run_next(midday))
    usage = job_of(door.get(f"/v1/jobs/{job['id']}"))["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == 30
    admitted_job(submit(door, max_tokens=20))

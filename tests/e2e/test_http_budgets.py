"""A tenant's budget at the door: what a client whose budget is exhausted gets on each kind of route and on the gate."""

import csv
import io
import json
from pathlib import Path

import pytest
import redis

from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import a_job, admitted
from tests.support.door import a_door, admitted_job, job_of, post_response, refused, run_next, serve, settle, submit
from tests.support.gate import served, submit_frame
from tests.support.in_process import InProcess
from web.openapi import response_models

#: 2027-01-15, 12:00 UTC.
NOON_MS = 1_800_014_400_000
RESETS_AT = "2027-01-16T00:00:00Z"


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store_url: str, redis_client: redis.Redis) -> InProcess:
    """The commands on the session's store, which is empty."""
    return InProcess(monkeypatch, tmp_path, store_url)


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
        door.post(
            "/v1/chat/completions",
            json={"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 20},
        ),
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
        assert "60.0 s" not in body["error"]["message"]
    quote = door.post("/v1/quote", json={"prompt": "hello", "max_tokens": 20}).get_json()
    assert (quote["verdict"], quote["refusal"]["limits"]["resets_at"]) == ("yield", RESETS_AT)


def job_tokens(store: Store) -> int:
    """Return how many prompt tokens an inflight job is estimated to have."""
    raw, *_ = store.client.zrange(keys.inflight(), 0, -1)
    return int(store.client.hget(keys.rq_job(raw.decode()), "penstock_prompt_tokens"))


def test_the_gate_refuses_as_the_door_does(midday: Store, settings: Settings) -> None:
    with served(midday, settings) as gate:
        first = gate.client.ask(submit_frame("a1", tenant="default", max_tokens=40))
        assert first["status"] == "accepted", first
        answer = gate.client.ask(submit_frame("a2", tenant="default", max_tokens=40))
        too_large = gate.client.ask(submit_frame("a3", tenant="default", max_tokens=60))
    assert (answer["status"], answer["reason"], answer["retry_hint_ms"]) == ("yield", "budget_exhausted", 60_000)
    assert answer["limits"]["resets_at"] == RESETS_AT
    assert (too_large["status"], too_large["reason"], too_large["retry_hint_ms"]) == ("yield", "budget_exhausted", None)


def test_the_usage_report_shows_the_budgets_of_the_tenant_and_its_group(midday: Store, settings: Settings) -> None:
    Groups(midday.client).set("team", GroupPolicy(tokens_per_month=1_000))
    Tenants(midday.client).change("default", {"group": "team"})
    Tenants(midday.client).set("red", TenantPolicy(tokens_per_day=5))
    door = a_door(midday, settings)
    for _ in range(2):
        admitted_job(submit(door, max_tokens=15))
    reserved = 15 + job_tokens(midday)
    settle(midday, run_next(midday))
    report = door.get("/v1/usage").get_json()
    response_models.UsageReport.model_validate(report)
    own, of_group = report["budgets"]
    used = {"counted_tokens": 30, "reserved_tokens": reserved}
    assert own == used | {
        "kind": "tenant",
        "name": "default",
        "period": "day",
        "max_tokens": 60,
        "left_tokens": 30 - reserved,
        "resets_at": RESETS_AT,
    }
    assert of_group == used | {
        "kind": "group",
        "name": "team",
        "period": "month",
        "max_tokens": 1_000,
        "left_tokens": 970 - reserved,
        "resets_at": "2027-02-01T00:00:00Z",
    }
    at_midnight = NOON_MS + 43_200_000
    midday.client.set(keys.clock(), f"={at_midnight}")
    own, of_group = door.get("/v1/usage").get_json()["budgets"]
    assert (own["counted_tokens"], own["resets_at"]) == (0, "2027-01-17T00:00:00Z")
    assert (of_group["counted_tokens"], own["reserved_tokens"]) == (30, reserved)
    everything = door.get("/v1/usage?all=1").get_json()["budgets"]
    assert [(row["kind"], row["name"]) for row in everything] == [
        ("tenant", "default"),
        ("tenant", "red"),
        ("group", "team"),
    ]


def test_the_metrics_show_what_is_used_of_a_budget(midday: Store, settings: Settings) -> None:
    door = a_door(midday, settings)
    admitted_job(submit(door, prompt="Once", max_tokens=40))
    page = door.get("/metrics/fleet").text
    labels = '{kind="tenant",owner="default",period="day"}'
    assert f"penstock_budget_tokens{labels} 60.0" in page
    assert f"penstock_budget_used_tokens{labels} {40 + job_tokens(midday):.1f}" in page


def test_a_record_that_another_program_replaced_hides_no_other_budget(midday: Store, settings: Settings) -> None:
    Groups(midday.client).set("team", GroupPolicy(tokens_per_day=7))
    midday.client.zadd(keys.tenants(), {"green": 1})
    for owner in ("green", "@team"):
        midday.client.set(keys.tenant(owner), "no hash")
    page = a_door(midday, settings).get("/metrics/fleet")
    assert page.status_code == 200
    assert 'penstock_budget_tokens{kind="tenant",owner="default",period="day"} 60.0' in page.text
    assert 'owner="green"' not in page.text
    midday.client.delete(keys.tenant("green"), keys.tenant("@team"))
    midday.client.zrem(keys.tenants(), "green")
    midday.client.srem(keys.groups(), "team")


def test_the_command_says_that_there_are_no_budgets(penstock: InProcess) -> None:
    listed = penstock("usage", "--budgets")
    assert len(listed.stdout.splitlines()) == 1
    assert listed.stderr.startswith("no tenant and no group has a budget")


def test_the_command_lists_the_budgets(midday: Store, penstock: InProcess) -> None:
    admitted(midday, a_job("default"))
    head, row = [line.split("\t") for line in penstock("usage", "--budgets").stdout.splitlines()]
    assert head == ["kind", "name", "period", "max", "counted", "reserved", "left", "resets_at"]
    assert row == ["tenant", "default", "day", "60", "0", "30", "30", RESETS_AT]
    (found,) = json.loads(penstock("usage", "--budgets", "--json").stdout)["budgets"]
    assert (found["name"], found["left_tokens"]) == ("default", 30)
    (found,) = csv.DictReader(io.StringIO(penstock("usage", "--budgets", "--csv").stdout))
    assert (found["name"], found["reserved_tokens"]) == ("default", "30")


def test_tokens_that_a_job_did_not_use_can_be_used_by_the_next_one(midday: Store, settings: Settings) -> None:
    door = a_door(midday, settings)
    job = admitted_job(submit(door, max_tokens=50))
    refused(submit(door, max_tokens=20), "budget_exhausted", 429)
    settle(midday, run_next(midday))
    usage = job_of(door.get(f"/v1/jobs/{job['id']}"))["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == 30
    admitted_job(submit(door, max_tokens=20))

"""`/v1/usage` and `penstock usage`: what tenants and operators read, and what is refused."""

import csv
import io
import json
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from flask.testing import FlaskClient

from shared.accounts.admin_keys import AdminKeys
from shared.accounts.api_keys import ApiKeys
from shared.accounts.usage import UsageRecords
from shared.clock import ManualClock
from shared.settings.settings import load
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import a_job, admitted, an_ending, claim_one, heartbeat
from tests.support.in_process import InProcess
from web.app import create_app
from web.openapi import response_models
from web.runtime.shared_answer import UsageDays


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store_url: str, redis_client: redis.Redis) -> InProcess:
    """The commands on the session's store, which is empty."""
    return InProcess(monkeypatch, tmp_path, store_url)


@pytest.fixture(autouse=True)
def one_day(store: Store) -> None:
    """Hold the store's time, so that no test begins on one day and ends on the next."""
    store.client.set(keys.clock(), f"={store.snapshot().now_ms}")


def door(store: Store, folder: Path, clock: ManualClock | None = None, auth: str = "required") -> FlaskClient:
    settings = load({"PENSTOCK_STATE_DIR": str(folder), "PENSTOCK_AUTH": auth}, dotenv=None)
    return create_app(settings, store, clock or ManualClock()).test_client()


def end_one(store: Store, tenant: str, label: str = "") -> None:
    """Run a job of 10 prompt and 20 answer tokens to its end."""
    heartbeat(store)
    admitted(store, a_job(tenant, key_label=label))
    store.settle(an_ending(claim_one(store).held), "w1")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def sums(client: FlaskClient, query: str = "", **headers: str) -> list[tuple[object, ...]]:
    """Return the rows of a report, without the failed, canceled and expired jobs, the cached tokens and the cost."""
    answer = client.get(f"/v1/usage{query}", headers=headers)
    assert answer.status_code == 200, answer.get_json()
    response_models.UsageReport.model_validate(answer.get_json())
    left_out = {"failed", "canceled", "expired", "cached_tokens", "cost_micro", "succeeded"}
    return [tuple(value for name, value in row.items() if name not in left_out) for row in answer.get_json()["data"]]


def test_a_tenant_reads_its_own_usage_by_day_and_model_and_by_key(store: Store, tmp_path: Path) -> None:
    for tenant, label in (("blue", "ci"), ("blue", ""), ("blue", "ci"), ("red", "ci")):
        end_one(store, tenant, label)
    key = ApiKeys(store.client).create("blue").key
    today = str(UsageRecords(store.client).today())
    client = door(store, tmp_path)
    assert sums(client, **bearer(key)) == [(today, "m", 3, 30, 60)]
    assert sums(client, "?by=key,tenant", **bearer(key)) == [("", "blue", 1, 10, 20), ("ci", "blue", 2, 20, 40)]
    assert sums(client, f"?to={today}&by=model&from={today}", **bearer(key)) == [("m", 3, 30, 60)]
    assert sums(client, "?from=2026-01-01&to=2026-01-31", **bearer(key)) == []


def test_only_an_operator_reads_the_usage_of_all_tenants(store: Store, tmp_path: Path) -> None:
    end_one(store, "blue")
    end_one(store, "red")
    client = door(store, tmp_path)
    tenant_key = ApiKeys(store.client).create("blue").key
    admin_key, _ = AdminKeys(store.client).create("ada")
    assert client.get("/v1/usage?all=1", headers=bearer(tenant_key)).status_code == 401
    assert client.get("/v1/usage?all=1").status_code == 401
    assert client.get("/v1/usage?all=0").status_code == 401
    assert client.get("/v1/usage", headers=bearer(admin_key)).status_code == 401
    assert sums(client, "?all=1&by=tenant", **bearer(admin_key)) == [("blue", 1, 10, 20), ("red", 1, 10, 20)]
    assert client.get("/v1/usage?all=1", headers=bearer(admin_key)).get_json()["tenant"] is None
    opened = door(store, tmp_path, auth="open")
    assert sums(opened, "?by=tenant", **{"X-Tenant": "red"}) == [("red", 1, 10, 20)]
    assert len(sums(opened, "?all=1&by=tenant")) == 2


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("by=hour", "by"),
        ("by=day,day", "by"),
        ("from=yesterday", "from"),
        ("to=2026-02-30", "to"),
        ("from=2026-01-01&to=2026-02-01", "from"),
        ("from=2026-01-02&to=2026-01-01", "from"),
        ("from=0001-01-01", "from"),
    ],
)
def test_a_wrong_dimension_date_or_period_is_named(store: Store, tmp_path: Path, query: str, param: str) -> None:
    answer = door(store, tmp_path, auth="open").get(f"/v1/usage?{query}")
    assert (answer.status_code, answer.get_json()["error"]["param"]) == (422, param)


def test_the_store_is_asked_once_for_a_past_day_and_once_a_second_for_today(store: Store, tmp_path: Path) -> None:
    end_one(store, "blue")
    clock, today = ManualClock(), UsageRecords(store.client).today()
    client = door(store, tmp_path, clock, auth="open")
    first = today - timedelta(days=5)

    def asked() -> int:
        counted = store.client.info("commandstats").get("cmdstat_hscan", {"calls": 0})
        return int(counted["calls"])

    path, before = f"?by=tenant&from={first}&to={today}", asked()
    for _ in range(3):
        assert sums(client, path, **{"X-Tenant": "blue"}) == [("blue", 1, 10, 20)]
    assert asked() - before == 6
    end_one(store, "blue")
    clock.advance(1.1)
    assert sums(client, path, **{"X-Tenant": "blue"}) == [("blue", 2, 20, 40)]
    assert asked() - before == 7


def test_a_tenant_that_polls_todays_usage_costs_no_other_tenant_its_past_days(store: Store) -> None:
    clock, today = ManualClock(), UsageRecords(store.client).today()
    days, past = UsageDays(store.client, clock), today - timedelta(days=5)
    kept = days.read("blue", past, today)
    for _ in range(3):
        clock.advance(1.1)
        days.read("red", today, today)
    assert days.read("blue", past, today) is kept
    assert len(days) == 2


def test_the_command_prints_a_table_csv_or_json(store: Store, penstock: InProcess) -> None:
    for tenant, label in (("blue", "ci"), ("red", "a, b"), ("blue", "ci")):
        end_one(store, tenant, label)
    store.cancel(admitted(store, a_job("red")))
    head, *rows = [line.split("\t") for line in penstock("usage").stdout.splitlines()]
    assert ",".join(head) == "tenant,requests,succeeded,failed,canceled,expired,prompt,cached,completion,cost"
    assert [",".join(row) for row in rows] == [
        "blue,2,2,0,0,0,20,0,40,\N{EN DASH}",
        "red,2,1,0,1,0,10,0,20,\N{EN DASH}",
    ]
    as_csv = list(csv.DictReader(io.StringIO(penstock("usage", "--by", "key,tenant", "--csv").stdout)))
    assert [(row["key"], row["tenant"], row["completion_tokens"]) for row in as_csv] == [
        ("", "red", "0"),
        ("a, b", "red", "20"),
        ("ci", "blue", "40"),
    ]
    today = str(UsageRecords(store.client).today())
    report = json.loads(penstock("usage", "--by", "day,model", "--from", today, "--json").stdout)
    assert (report["from"], report["to"]) == (today, today)
    assert [(row["day"], row["model"], row["requests"]) for row in report["rows"]] == [(today, "m", 4)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--by", "hour"], "by='hour'"),
        (["--from", "tomorrow"], "from='tomorrow'"),
        (["--from", "2020-01-01", "--to", "2026-01-01"], "not 1 to 400"),
        (["--from", "2026-01-02", "--to", "2026-01-01"], "from=2026-01-02 is after to=2026-01-01"),
        (["--csv", "--json"], "--csv or --json"),
    ],
)
def test_what_is_wrong_with_the_command_line_is_said(penstock: InProcess, arguments: list[str], expected: str) -> None:
    refused = penstock("usage", *arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert expected in refused.stderr


def test_doctor_says_if_another_program_changed_the_usage(store: Store, penstock: InProcess) -> None:
    end_one(store, "blue")
    day = keys.usage(str(UsageRecords(store.client).today()))
    assert day not in penstock("doctor").stderr
    store.client.hdel(day, "blue||m")
    done = penstock("doctor")
    assert (done.returncode, day in done.stderr) == (0, True)

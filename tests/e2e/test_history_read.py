"""`/v1/admin/history`, `penstock history` and the console's page: the same answer to the same question."""

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from flask.testing import FlaskClient

from shared.accounts.admin_actions import list_actions
from shared.clock import ManualClock
from shared.history import points
from shared.history.stored import StoredHistory
from shared.jobs.outcomes import Refusal
from shared.settings.settings import load
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import a_job, admitted, advance_clock, an_ending, claim_one, heartbeat
from tests.support.console import ATTACK
from tests.support.in_process import InProcess
from web.app import create_app
from web.openapi import operator_models
from web.runtime.start import load_admin_key

#: 14:03 on a day.
BEGIN_MS = 1_800_000_000_000 // 86_400_000 * 86_400_000 + 14 * 3_600_000 + 3 * 60_000
LIMIT_BYTES = 2**24


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store_url: str, redis_client: redis.Redis) -> InProcess:
    """The commands on the session's store, which is empty."""
    return InProcess(monkeypatch, tmp_path, store_url)


@pytest.fixture(autouse=True)
def afternoon(store: Store) -> None:
    """At 14:05 blue's job ends and 7 of red's requests are refused; it is 14:20 now."""
    store.client.set(keys.clock(), f"={BEGIN_MS}")
    history = StoredHistory(store.client)
    history.write_point(LIMIT_BYTES)
    pass_minutes(store, 2)
    heartbeat(store)
    admitted(store, a_job("blue"))
    admitted(store, a_job("red"))
    store.settle(an_ending(claim_one(store)), "w1")
    store.count_refusals("red", "m", Refusal.TENANT_QUEUE_FULL, 100, [50] * 7)
    advance_clock(store, 10_000)
    history.write_point(LIMIT_BYTES)
    pass_minutes(store, 15)


def pass_minutes(store: Store, minutes: int) -> None:
    """Let time pass in which nothing happens, and write the last point of it."""
    advance_clock(store, 60_000 * minutes)
    StoredHistory(store.client).write_point(LIMIT_BYTES)


def door(store: Store, folder: Path) -> tuple[FlaskClient, dict[str, str]]:
    """Return a door's client, and the headers of an operator."""
    settings = load({"PENSTOCK_STATE_DIR": str(folder), "PENSTOCK_AUTH": "required"}, dotenv=None)
    client = create_app(settings, store, ManualClock()).test_client()
    return client, {"Authorization": f"Bearer {load_admin_key(settings)}"}


def test_after_each_point_the_other_requests_of_the_door_have_their_turn(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[float] = []
    monkeypatch.setattr(points, "time", SimpleNamespace(sleep=turns.append))
    client, operator = door(store, tmp_path)
    told = client.get("/v1/admin/history", headers=operator).get_json()
    # Each is parsed, added up and told.
    assert turns.count(0) == 3 * len(told["data"]) > 0
    client.get("/console/history", headers=operator)
    assert turns.count(0) == 6 * len(told["data"])


def test_the_route_says_what_happened_at_a_time(store: Store, tmp_path: Path):
    client, operator = door(store, tmp_path)
    answer = client.get("/v1/admin/history?at=14:05", headers=operator)
    assert answer.status_code == 200, answer.text
    told = answer.get_json()
    operator_models.History.model_validate(told)
    moment = told["moment"]
    assert moment["from"].endswith("T14:05:00Z")
    assert moment["to"].endswith("T14:05:10Z")
    assert moment["tenants"]["red"]["refused"] == {"tenant_queue_full": 7}
    assert moment["tenants"]["blue"]["completion_tokens"] == 20
    assert moment["total"]["admitted"] == 2
    assert moment["models"]["m"]["waiting"] == 1
    assert sum(point["admitted"] for point in told["data"]) == 2
    assert (told["step_s"], told["unnamed_points"]) == (10, 0)


@pytest.mark.parametrize("query", ["tenant=red", "model=m"])
def test_the_route_answers_for_one_tenant_or_model(store: Store, tmp_path: Path, query: str):
    client, operator = door(store, tmp_path)
    told = client.get(f"/v1/admin/history?{query}&span=10m&at=14:05", headers=operator).get_json()
    operator_models.History.model_validate(told)
    assert sum(sum(point["refused"].values()) for point in told["data"]) == 7
    assert told["moment"]["total"]["admitted"] == (1 if query == "tenant=red" else 2)


@pytest.mark.parametrize(("query", "step_s"), [("span=1d", 300), ("span=30d", 3_600), ("at=5h", 300), ("at=3d", 3_600)])
def test_longer_and_earlier_spans_are_answered_with_longer_points(store, tmp_path, query, step_s):
    client, operator = door(store, tmp_path)
    told = client.get(f"/v1/admin/history?{query}", headers=operator).get_json()
    assert told["step_s"] == step_s
    if query.startswith("span"):
        assert sum(point["admitted"] for point in told["data"]) == told["moment"]["total"]["admitted"] == 2
    else:
        assert told["moment"] is None


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("at=yesterday", "at"),
        ("at=9999-01-01", "at"),
        ("span=2h", "span"),
        ("tenant=a/b", "tenant"),
        ("tenant=a&model=m", "model"),
        (f"model={'m' * 257}", "model"),
    ],
)
def test_a_wrong_question_names_its_field(store: Store, tmp_path: Path, penstock: InProcess, query: str, field: str):
    client, operator = door(store, tmp_path)
    answer = client.get(f"/v1/admin/history?{query}", headers=operator)
    assert (answer.status_code, answer.get_json()["error"]["param"]) == (422, field)
    page = client.get(f"/console/history?{query}", headers=operator)
    assert page.status_code == 422
    assert 'aria-invalid="true"' in page.text or field == "span"
    options = [word for part in query.split("&") for word in ("--" + part.partition("=")[0], part.partition("=")[2])]
    done = penstock("history", *options)
    assert done.returncode == 2
    assert field in done.stderr


def test_only_operators_read_the_history(store: Store, tmp_path: Path):
    client, _ = door(store, tmp_path)
    assert client.get("/v1/admin/history").status_code == 401
    assert client.get("/console/history").status_code == 401


def test_the_command_gives_the_same_answer(store: Store, tmp_path: Path, penstock: InProcess):
    client, operator = door(store, tmp_path)
    told = client.get("/v1/admin/history?at=14:05&tenant=red", headers=operator).get_json()
    assert json.loads(penstock("history", "--at", "14:05", "--tenant", "red", "--json").stdout) == told
    table = penstock("history", "--at", "14:05").stdout
    assert "tenant_queue_full:7" in table
    assert "m" in table
    assert "tenant_queue_full:7" in penstock("history", "--tenant", "red").stdout


def test_the_page_says_what_happened_at_a_time(store: Store, tmp_path: Path):
    client, operator = door(store, tmp_path)
    page = client.get("/console/history?at=14:05", headers=operator).text
    assert "tenant_queue_full 7" in page
    day = datetime.fromtimestamp(BEGIN_MS / 1_000, UTC).date()
    assert f"/console/history?at={day}T14%3A05%3A00Z&amp;model=m" in page
    assert "At this time" in page


def test_the_charts_begin_with_the_first_point_and_leave_out_what_nobody_spent(store: Store, tmp_path: Path):
    client, operator = door(store, tmp_path)
    page = client.get("/console/history", headers=operator).text
    assert "nothing is known before 2027-01-15 14:02:50. " in page
    assert f"&#34;from&#34;: {BEGIN_MS / 1_000 - 10}" in page
    assert 'id="past-tokens"' in page
    assert 'id="past-spent"' not in page
    store.client.hset(keys.history_now(), "cost_micro|blue|m", 5)
    advance_clock(store, 10_000)
    StoredHistory(store.client).write_point(LIMIT_BYTES)
    assert 'id="past-spent"' in client.get("/console/history", headers=operator).text


def test_names_of_other_programs_are_text_on_the_page(store: Store, tmp_path: Path):
    client, operator = door(store, tmp_path)
    store.client.hset(keys.history_now(), f"admitted|blue|{ATTACK.replace(' ', '')}", 1)
    advance_clock(store, 10_000)
    StoredHistory(store.client).write_point(LIMIT_BYTES)
    page = client.get("/console/history", headers=operator).text
    assert ATTACK not in page
    assert "&lt;script&gt;" in page


def test_a_tenant_that_is_removed_can_be_erased_from_the_history(store: Store, tmp_path: Path, penstock: InProcess):
    client, operator = door(store, tmp_path)
    done = penstock("tenants", "rm", "red", "--erase-history")
    assert done.returncode == 0
    assert "points of the history named tenant 'red'" in done.stderr
    told = client.get("/v1/admin/history?at=14:05", headers=operator).get_json()["moment"]
    assert "red" not in told["tenants"]
    assert told["other_tenants"]["refused"] == {"tenant_queue_full": 7}
    assert [action.what for action in list_actions(store.client, limit=1)] == ["tenant.erase_history"]

"""`/v1/admin/jobs`, `penstock jobs ls` and `penstock jobs cancel`: what operators see and cancel, and nobody else."""

import json
from pathlib import Path

import pytest
import redis
from flask.testing import FlaskClient

from shared.accounts.admin_actions import list_actions
from shared.accounts.api_keys import ApiKeys
from shared.clock import ManualClock
from shared.errors import StoreUnavailable
from shared.jobs.states import JobState
from shared.settings.settings import load
from shared.store.replies import CancelAnswer
from shared.store.store import Store
from tests.support.builders import a_job, admitted, advance_clock, an_ending, claim_one, heartbeat, hold_clock, view_of
from tests.support.in_process import InProcess
from web.app import create_app
from web.openapi import operator_models
from web.runtime.start import load_admin_key


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store_url: str, redis_client: redis.Redis) -> InProcess:
    """The commands on the session's store, which is empty."""
    return InProcess(monkeypatch, tmp_path, store_url)


@pytest.fixture(autouse=True)
def jobs(store: Store) -> dict[str, str]:
    """A job that has succeeded, one that runs and one that waits, of blue; and one of green that waits. By name."""
    hold_clock(store)
    heartbeat(store)
    ids = {}
    for name, tenant in (("ended", "blue"), ("running", "blue"), ("waiting", "blue"), ("green", "green")):
        ids[name] = admitted(store, a_job(tenant, key_label="ci" if tenant == "blue" else ""))
        advance_clock(store, 1)
        if name == "ended":
            store.settle(an_ending(claim_one(store).held), "w1")
        elif name == "running":
            claim_one(store)
    return ids


def door(store: Store, folder: Path) -> tuple[FlaskClient, dict[str, str]]:
    """Return a door's client, and the headers of an operator."""
    settings = load({"PENSTOCK_STATE_DIR": str(folder), "PENSTOCK_AUTH": "required"}, dotenv=None)
    client = create_app(settings, store, ManualClock()).test_client()
    return client, {"Authorization": f"Bearer {load_admin_key(settings)}"}


def test_an_operator_lists_the_jobs_of_all_tenants_page_by_page(store: Store, tmp_path: Path, jobs: dict[str, str]):
    client, operator = door(store, tmp_path)
    first = client.get("/v1/admin/jobs?limit=3", headers=operator).get_json()
    second = client.get(f"/v1/admin/jobs?limit=3&cursor={first['cursor']}", headers=operator).get_json()
    for page in (first, second):
        operator_models.AllJobs.model_validate(page)
    listed = first["data"] + second["data"]
    assert [job["id"] for job in listed] == [jobs[name] for name in ("green", "waiting", "running", "ended")]
    assert (second["cursor"], second["has_more"]) == (None, False)
    ended = listed[-1]
    assert {name: ended[name] for name in ("tenant", "key", "status", "reason", "completion_tokens")} == {
        "tenant": "blue",
        "key": "ci",
        "status": "succeeded",
        "reason": "stop",
        "completion_tokens": 20,
    }
    found = client.get("/v1/admin/jobs?state=ended&key=ci&since=1h", headers=operator).get_json()
    assert [job["id"] for job in found["data"]] == [jobs["ended"]]


def test_a_tenants_key_opens_no_route_of_operators(store: Store, tmp_path: Path, jobs: dict[str, str]):
    client, _ = door(store, tmp_path)
    key = {"Authorization": f"Bearer {ApiKeys(store.client).create('blue').key}"}
    for headers in ({}, key):
        assert client.get("/v1/admin/jobs", headers=headers).status_code == 401
        assert client.delete("/v1/admin/jobs?tenant=blue", headers=headers).status_code == 401
    assert client.get("/v1/admin/nothing", headers=key).status_code == 404
    assert view_of(store, jobs["waiting"]).state is JobState.QUEUED


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("state=asleep", "state"),
        ("since=yesterday", "since"),
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("cursor=x", "cursor"),
        ("cursor=", "cursor"),
    ],
)
def test_an_invalid_query_is_answered_with_the_name_of_its_field(store: Store, tmp_path: Path, query: str, param: str):
    client, operator = door(store, tmp_path)
    answer = client.get(f"/v1/admin/jobs?{query}", headers=operator)
    assert (answer.status_code, answer.get_json()["error"]["param"]) == (422, param)


def test_an_operator_cancels_the_jobs_of_a_filter(store: Store, tmp_path: Path, jobs: dict[str, str]):
    client, operator = door(store, tmp_path)
    assert client.delete("/v1/admin/jobs", headers=operator).status_code == 422
    assert client.delete("/v1/admin/jobs?state=failed", headers=operator).status_code == 422
    answer = client.delete("/v1/admin/jobs?tenant=blue", headers=operator).get_json()
    operator_models.CanceledJobs.model_validate(answer)
    assert answer == {"object": "canceled_jobs", "canceled": 1, "requested": 1, "ended": 0, "cursor": None}
    assert view_of(store, jobs["waiting"]).state is JobState.CANCELED
    assert view_of(store, jobs["running"]).cancel_requested
    assert view_of(store, jobs["green"]).state is JobState.QUEUED


def test_a_cancel_that_the_store_leaves_in_the_middle_says_what_was_done_and_continues(
    store: Store, tmp_path: Path, jobs: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    client, operator = door(store, tmp_path)
    cancel, left = store.cancel, [1]

    def cancel_one(job_id: str) -> CancelAnswer:
        if not left:
            raise StoreUnavailable("gone")
        left.pop()
        return cancel(job_id)

    monkeypatch.setattr(store, "cancel", cancel_one)
    first = client.delete("/v1/admin/jobs?tenant=blue", headers=operator)
    assert first.status_code == 200
    assert (first.get_json()["canceled"], first.get_json()["requested"]) == (1, 0)
    # Nothing more can be done.
    path = f"/v1/admin/jobs?tenant=blue&cursor={first.get_json()['cursor']}"
    assert client.delete(path, headers=operator).status_code == 503
    left.append(1)
    second = client.delete(path, headers=operator).get_json()
    assert (second["canceled"], second["requested"], second["cursor"]) == (0, 1, None)


def test_jobs_ls_lists_what_the_options_select(penstock: InProcess, jobs: dict[str, str]):
    listed = penstock("jobs", "ls", "--state", "inflight", "--tenant", "blue", "--since", "1h")
    header, *rows = [line.split("\t") for line in listed.stdout.splitlines()]
    assert [row[0] for row in rows] == [jobs["waiting"], jobs["running"]]
    assert dict(zip(header, rows[0], strict=True))["key"] == "ci"
    found = json.loads(penstock("jobs", "ls", "--limit", "1", "--json").stdout)
    assert [job["id"] for job in found["data"]] == [jobs["green"]]
    page = penstock("jobs", "ls", "--cursor", found["cursor"], "--id", jobs["ended"][:10], "--json")
    assert [job["id"] for job in json.loads(page.stdout)["data"]] == [jobs["ended"]]
    wrong = penstock("jobs", "ls", "--state", "asleep")
    assert (wrong.returncode, "state='asleep'" in wrong.stderr) == (2, True)


def test_jobs_cancel_asks_or_needs_a_yes(penstock: InProcess, store: Store, jobs: dict[str, str]):
    refused = penstock("jobs", "cancel", "--tenant", "blue")
    assert (refused.returncode, "2 jobs (1 queued, 1 running) would be canceled" in refused.stderr) == (2, True)
    assert penstock("jobs", "cancel", "--yes").returncode == 2
    assert view_of(store, jobs["waiting"]).state is JobState.QUEUED
    done = penstock("jobs", "cancel", "--tenant", "blue", "--yes", "--json")
    assert json.loads(done.stdout) == {"canceled": 1, "requested": 1, "ended": 0}
    again = penstock("jobs", "cancel", "--tenant", "blue", "--yes")
    assert again.stdout == "0 queued jobs canceled, 0 running jobs will stop, 0 had already ended\n"
    assert [one.what for one in list_actions(store.client, limit=2)] == ["job.canceled_many", "job.cancel_many"]

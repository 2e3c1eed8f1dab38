"""Tests the keys of operators at the door and at the dashboard, and what the audit log shows of them."""

import json
from pathlib import Path

import pytest
import redis
import structlog
from flask.testing import FlaskClient

from shared.accounts.admin_actions import list_actions
from shared.accounts.admin_keys import AdminKeys
from shared.clock import RealClock
from shared.errors import StoreUnavailable
from shared.jobs.states import JobState
from shared.settings.settings import load
from shared.store.connection import DOOR, open_client
from shared.store.store import Store
from tests.support.builders import a_heartbeat, view_of
from tests.support.dashboard_scene import set_scene
from tests.support.program import Program, program
from web.app import create_app
from web.runtime.start import load_admin_key

#: Operators' pages: one of the door and one of the dashboard.
PAGES = ["/metrics/fleet", "/rq/"]


@pytest.fixture
def penstock(tmp_path: Path, store_url: str, redis_client: redis.Redis) -> Program:
    """The program on the session's store, which is empty."""
    return program(tmp_path, REDIS_URL=store_url)


def door(store: Store, tmp_path: Path, **names: str) -> FlaskClient:
    settings = load({"PENSTOCK_STATE_DIR": str(tmp_path), "PENSTOCK_DASHBOARD": "write"} | names, dotenv=None)
    return create_app(settings, store, RealClock()).test_client()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("page", PAGES)
def test_an_admin_key_opens_operators_pages_until_it_is_removed(store, tmp_path, penstock, page):
    visitor = door(store, tmp_path)
    key = penstock("admin-keys", "add", "--name", "ada").stdout.strip()
    assert visitor.get(page, headers=bearer(key)).status_code == 200
    assert visitor.get(page, headers=bearer(key[:-1])).status_code == 401
    assert penstock("admin-keys", "rm", "ada").returncode == 0
    assert door(store, tmp_path).get(page, headers=bearer(key)).status_code == 401


def test_an_admin_key_is_no_api_key_and_an_api_key_is_no_admin_key(store, tmp_path, penstock):
    visitor = door(store, tmp_path)
    admin_key = penstock("admin-keys", "add", "--name", "ada").stdout.strip()
    api_key = penstock("keys", "add", "blue").stdout.strip()
    assert visitor.get("/v1/jobs", headers=bearer(admin_key)).status_code == 401
    assert visitor.get("/metrics/fleet", headers=bearer(api_key)).status_code == 401


def test_the_key_in_the_file_works_while_the_store_does_not_answer_and_the_other_keys_are_503(tmp_path):
    store = Store(open_client("redis://127.0.0.1:1", name="penstock-test", timeouts=DOOR))
    visitor = door(store, tmp_path)
    key = load_admin_key(load({"PENSTOCK_STATE_DIR": str(tmp_path)}, dotenv=None))
    assert visitor.get("/rq/favicon.ico", headers=bearer(key), buffered=True).status_code == 200
    assert visitor.get("/rq/favicon.ico", headers=bearer("psa_another")).status_code == 503


def test_a_button_of_the_dashboard_is_recorded_with_the_name_of_the_admin_key(store, tmp_path, redis_client):
    scene = set_scene(store)
    key, _ = AdminKeys(redis_client).create("ada")
    job_id = scene.jobs[JobState.QUEUED]
    with structlog.testing.capture_logs() as lines:
        answer = door(store, tmp_path).post(
            f"/rq/job/{job_id}/delete", headers=bearer(key), environ_base={"REMOTE_ADDR": "10.1.2.3"}
        )
    assert answer.status_code == 200
    newest = next(list_actions(redis_client, limit=1))
    expected = {"who": "ada", "what": "job.delete", "on": f"job {job_id}, queued", "from": "10.1.2.3"}
    assert {"who": newest.who, "what": newest.what, "on": newest.on, "from": newest.origin} == expected
    (logged,) = [line for line in lines if line["event"] == "admin.action"]
    assert expected.items() <= logged.items()


def test_a_delete_is_recorded_even_if_the_door_does_not_outlive_it(store, tmp_path, redis_client, monkeypatch):
    scene = set_scene(store)
    job_id, cancel = scene.jobs[JobState.QUEUED], Store.cancel

    def lose_the_answer(self: Store, *given: str) -> None:
        cancel(self, *given)
        raise StoreUnavailable("the connection is lost")

    monkeypatch.setattr(Store, "cancel", lose_the_answer)
    assert door(store, tmp_path, PENSTOCK_AUTH="open").post(f"/rq/job/{job_id}/delete").status_code == 503
    assert view_of(store, job_id).state is JobState.CANCELED
    assert next(list_actions(redis_client, limit=1)).on == f"job {job_id}, queued"


def test_behind_a_trusted_proxy_the_address_of_the_operator_is_recorded(store, tmp_path, redis_client):
    scene = set_scene(store)
    visitor = door(store, tmp_path, PENSTOCK_AUTH="open", PENSTOCK_TRUSTED_PROXIES="127.0.0.1")
    visitor.post(f"/rq/job/{scene.jobs[JobState.QUEUED]}/delete", headers={"X-Forwarded-For": "10.9.9.9, 10.1.2.3"})
    newest = next(list_actions(redis_client, limit=1))
    assert (newest.who, newest.origin) == ("anyone", "10.1.2.3")


def test_a_button_without_an_admin_key_records_nothing(store, tmp_path, redis_client):
    scene = set_scene(store)
    assert door(store, tmp_path).post(f"/rq/job/{scene.jobs[JobState.QUEUED]}/delete").status_code == 401
    assert list(list_actions(redis_client, limit=1)) == []


def test_the_audit_command_lists_the_newest_change_first(penstock):
    penstock("keys", "add", "blue", "--label", "ci")
    penstock("tenants", "set", "blue", "--weight", "2")
    head, *lines = [line.split("\t") for line in penstock("audit").stdout.splitlines()]
    assert head == ["at", "who", "what", "on", "from"]
    assert [line[2] for line in lines] == ["tenant.set", "key.add"]
    assert lines[0][3] == "tenant blue: weight=2.0"
    (newest,) = [json.loads(line) for line in penstock("audit", "--limit", "1", "--json").stdout.splitlines()]
    assert (newest["event"], newest["what"]) == ("admin.action", "tenant.set")
    assert newest["from"].startswith("command line on ")


def test_an_empty_list_of_admin_keys_is_reported(penstock):
    listed = penstock("admin-keys", "ls")
    assert listed.stdout == "id\tname\tcreated\texpires\n"
    assert listed.stderr.startswith("no admin key is stored")


def test_admin_keys_are_listed_without_the_keys(penstock):
    key = penstock("admin-keys", "add", "--name", "ada", "--expires", "1h").stdout.strip()
    listed = penstock("admin-keys", "ls")
    assert "ada" in listed.stdout
    assert key not in listed.stdout + penstock("admin-keys", "ls", "--json").stdout
    again = penstock("admin-keys", "add", "--name", "ada")
    assert (again.returncode, again.stdout) == (2, "")
    assert "name='ada'" in again.stderr
    assert penstock("admin-keys", "rm", "bob").returncode == 1


def test_the_door_refuses_a_job_above_the_bounds_of_its_key_and_serves_the_tenant_s_other_key(
    store, tmp_path, penstock
):
    bounded = penstock("keys", "add", "blue", "--label", "ci", "--rpm", "1").stdout.strip()
    free = penstock("keys", "add", "blue", "--label", "free").stdout.strip()
    body = {"prompt": "hello", "max_tokens": 5}
    visitor = door(store, tmp_path)
    store.renew(a_heartbeat(), [])
    assert visitor.post("/v1/jobs", json=body, headers=bearer(bounded)).status_code == 202
    refused = visitor.post("/v1/jobs", json=body, headers=bearer(bounded))
    assert (refused.status_code, refused.get_json()["limits"]["limit"]) == (429, "key_requests_per_minute")
    assert visitor.post("/v1/jobs", json=body, headers=bearer(free)).status_code == 202
    changed = penstock("keys", "set", "ci", "--rpm", "none", "--max-waiting", "9", "--json")
    assert json.loads(changed.stdout)["bounds"] == {"rpm": None, "tpm": None, "max_waiting": 9}
    store.renew(a_heartbeat(), [])
    assert door(store, tmp_path).post("/v1/jobs", json=body, headers=bearer(bounded)).status_code == 202
    for wrong in (["keys", "set", "ci"], ["keys", "set", "ci", "--rpm", "0"], ["keys", "set", "ci", "--tpm", "many"]):
        done = penstock(*wrong)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)

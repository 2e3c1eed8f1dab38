"""Tests the access to the console and its buttons, which no page of another site can press."""

import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from flask.testing import FlaskClient

from shared.accounts.admin_actions import list_actions
from shared.accounts.admin_keys import AdminKeys
from shared.accounts.tenants import Tenants
from shared.accounts.workers import Workers
from shared.clock import RealClock
from shared.errors import StoreUnavailable
from shared.jobs.states import JobState
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import load
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import a_job, admitted, heartbeat, view_of
from tests.support.console import ATTACK, feed_of, press, token_of
from tests.support.door import a_door
from tests.support.processes import wait_for
from web.app import create_app
from web.console import feed, playground, streams
from web.console.guard import TOKEN_HEADER, VALID_S, PageTokens
from web.console.reads import TenantFacts, read_tenant_facts


@pytest.fixture
def keyed(store: Store, tmp_path: Path) -> FlaskClient:
    """A browser at a door that requires keys."""
    return create_app(load({"PENSTOCK_STATE_DIR": str(tmp_path)}, dotenv=None), store, RealClock()).test_client()


BUTTONS = [
    *("drain", "drain-all", "resume", "resume-all", "cancel", "disable", "enable", "playground/answer"),
    *("tenants/blue/policy", "tenants/blue/keys", "tenants/blue/keys/rotate", "tenants/blue/keys/remove"),
    *("groups", "groups/remove", "groups/lab/policy", "routes", "routes/remove"),
]
FOREIGN: list[dict[str, str]] = [
    {},
    {TOKEN_HEADER: "9999999999." + "A" * 43},
    {TOKEN_HEADER: "good", "Origin": "http://evil.example"},
    {TOKEN_HEADER: "good", "Sec-Fetch-Site": "cross-site"},
    {TOKEN_HEADER: "good", "Sec-Fetch-Site": "same-site", "Origin": "http://localhost:9999"},
]


@pytest.mark.parametrize("button", BUTTONS)
@pytest.mark.parametrize("headers", FOREIGN, ids=["form", "forged", "origin", "cross-site", "other port"])
def test_no_page_of_another_site_can_press_a_button(visitor, store, redis_client, button, headers):
    heartbeat(store)
    good = token_of(visitor.get("/console").text)
    sent = {name: good if value == "good" else value for name, value in headers.items()}
    fields = {"worker": "w1", "tenant": "blue", "job": admitted(store, a_job()), "prompt": "hi"}
    answer = visitor.post(f"/console/{button}", data=fields, headers=sent)
    assert answer.status_code == 403
    assert list(list_actions(redis_client, limit=1)) == []
    assert not Workers(redis_client).is_marked("w1")


@pytest.mark.parametrize("path", ["/console", "/console/live", "/console/find-tenants?q=a"])
def test_no_page_of_another_site_can_read_the_console_but_a_link_may_lead_to_it(visitor, path):
    foreign = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
    assert visitor.get(path, headers=foreign).status_code == 403
    opened = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    # A window that the other page opens is a link too. It must not take the place of a viewer.
    assert visitor.get(path, headers=opened).status_code == (200 if path == "/console" else 403)
    framed = opened | {"Sec-Fetch-Dest": "iframe"}
    assert visitor.get(path, headers=framed).status_code == 403


def test_a_link_of_another_site_leads_to_a_jobs_page_and_not_to_its_stream(visitor, store):
    heartbeat(store)
    job_id = admitted(store, a_job())
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert visitor.get(f"/console/jobs/{job_id}", headers=link).status_code == 200
    assert visitor.get(f"/console/jobs/{job_id}/live", headers=link).status_code == 403


def test_a_token_is_valid_for_its_operator_until_it_expires(redis_client):
    now_s = 1_000_000.0
    tokens = PageTokens(redis_client, lambda: now_s)
    token = tokens.make("ada")
    assert tokens.is_valid(token, "ada")
    assert not tokens.is_valid(token, "bob")
    now_s += VALID_S
    assert not tokens.is_valid(token, "ada")


def test_a_button_is_recorded_with_the_name_of_the_admin_key(keyed, store, redis_client):
    key, _ = AdminKeys(redis_client).create("ada")
    heartbeat(store)
    with structlog.testing.capture_logs() as lines:
        answer = press(keyed, "drain", {"Authorization": f"Bearer {key}"}, worker="w1")
    assert "Worker w1 claims no more jobs" in answer.text
    newest = next(list_actions(redis_client, limit=1))
    assert (newest.who, newest.what, newest.on) == ("ada", "worker.drain", "worker w1")
    assert [line["what"] for line in lines if line["event"] == "admin.action"] == ["worker.drain"]


def test_workers_are_drained_and_resumed(visitor, store, redis_client):
    heartbeat(store)
    workers = Workers(redis_client)
    assert press(visitor, "drain", worker="w1").status_code == 200
    assert workers.is_marked("w1")
    assert "claims jobs again" in press(visitor, "resume", worker="w1").text
    assert not workers.is_marked("w1")
    press(visitor, "drain-all")
    assert workers.is_system_draining()
    assert "all workers do" in press(visitor, "resume", worker="w1").text
    press(visitor, "resume-all")
    assert not workers.is_system_draining()
    recorded = [one.what for one in list_actions(redis_client, limit=10)]
    assert recorded == ["system.resume", "worker.resume", "system.drain", "worker.resume", "worker.drain"]


def test_a_worker_a_job_or_a_tenant_that_does_not_exist_is_an_error_that_names_it(visitor):
    for button, fields, status in (
        ("drain", {"worker": ATTACK}, 422),
        ("drain", {}, 422),
        ("cancel", {"job": "none"}, 404),
        ("disable", {"tenant": "a b"}, 422),
    ):
        answer = press(visitor, button, **fields)
        assert (answer.status_code, answer.mimetype) == (status, "application/json"), answer.text


def test_a_job_is_canceled(visitor, store, redis_client):
    heartbeat(store)
    job_id = admitted(store, a_job())
    assert f"Job {job_id} is canceled." in press(visitor, "cancel", job=job_id).text
    assert view_of(store, job_id).state is JobState.CANCELED
    assert "already ended" in press(visitor, "cancel", job=job_id).text
    assert [one.on for one in list_actions(redis_client, limit=2)] == [
        f"job {job_id}, canceled",
        f"job {job_id}, queued",
    ]


def lose_the_answer(act: Callable[..., object]) -> Callable[..., object]:
    """Return a function that acts, after which the door gets no answer, as if it were killed then."""

    def lost(*given: object, **named: object) -> object:
        act(*given, **named)
        raise StoreUnavailable("the connection is lost")

    return lost


def test_a_cancel_is_recorded_even_if_the_door_does_not_outlive_it(visitor, store, redis_client, monkeypatch):
    heartbeat(store)
    job_id = admitted(store, a_job())
    monkeypatch.setattr(Store, "cancel", lose_the_answer(Store.cancel))
    assert press(visitor, "cancel", job=job_id).status_code == 503
    assert view_of(store, job_id).state is JobState.CANCELED
    newest = next(list_actions(redis_client, limit=1))
    assert (newest.what, newest.on) == ("job.cancel", f"job {job_id}, queued")


def test_a_question_is_recorded_even_if_the_door_does_not_outlive_it(visitor, store, redis_client, monkeypatch):
    heartbeat(store)
    monkeypatch.setattr(playground, "offer", lose_the_answer(playground.offer))
    body = {"messages": [{"role": "user", "content": "hello"}], "model": "m"}
    sent = {TOKEN_HEADER: token_of(visitor.get("/console").text)}
    assert visitor.post("/console/playground/answer?tenant=blue", json=body, headers=sent).status_code == 503
    (job,) = store.jobs("blue").jobs
    newest = next(list_actions(redis_client, limit=1))
    assert (newest.what, newest.on) == ("job.submit", f"job {job.id} of tenant blue")


def test_a_job_that_does_not_exist_is_not_recorded(visitor, redis_client):
    assert press(visitor, "cancel", job="none").status_code == 404
    assert list(list_actions(redis_client, limit=1)) == []


def test_a_tenant_is_disabled_and_enabled_and_keeps_its_policy(visitor, redis_client):
    tenants = Tenants(redis_client)
    tenants.set("blue", TenantPolicy(weight=3.0))
    press(visitor, "disable", tenant="blue")
    assert tenants.get("blue") == TenantPolicy(weight=3.0, disabled=True)
    assert "disabled" in visitor.get("/console/find-tenants?q=BLU").text
    press(visitor, "enable", tenant="blue")
    assert tenants.get("blue") == TenantPolicy(weight=3.0, disabled=False)


@pytest.mark.parametrize("button", ["disable", "enable"])
def test_a_tenant_whose_record_another_program_replaced_is_disabled_and_enabled_too(visitor, redis_client, button):
    redis_client.set(keys.tenant("blue"), "no hash")
    redis_client.zadd(keys.tenants(), {"blue": -1})
    assert press(visitor, button, tenant="blue").status_code == 200
    assert Tenants(redis_client).get("blue") == TenantPolicy(disabled=button == "disable")
    assert redis_client.get(keys.spoiled(keys.tenant("blue"))) == b"no hash"
    assert next(list_actions(redis_client, limit=1)).what == "tenant.set"


def test_a_tenant_that_was_disabled_is_not_reported_as_an_error_when_the_store_goes_away_afterwards(
    visitor, redis_client, monkeypatch
):
    def is_away(_: Store) -> TenantFacts:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(feed, "read_tenant_facts", is_away)
    answer = press(visitor, "disable", tenant="blue")
    assert (answer.status_code, "Tenant blue is disabled" in answer.text) == (200, True)
    assert Tenants(redis_client).get("blue") == TenantPolicy(disabled=True)
    assert visitor.get("/console/find-tenants?q=blue").status_code == 503


def test_a_tenant_is_shown_as_disabled_even_if_all_were_being_read_when_the_button_was_pressed(
    visitor, redis_client, monkeypatch
):
    Tenants(redis_client).set("blue", TenantPolicy())
    original, reads = read_tenant_facts, []
    may_end = threading.Event()

    def slow(store: Store) -> TenantFacts:
        reads.append(1)
        facts = original(store)
        assert len(reads) > 1 or may_end.wait(60)
        return facts

    monkeypatch.setattr(feed, "read_tenant_facts", slow)
    early = threading.Thread(target=lambda: feed_of(visitor).tenant_facts())
    early.start()
    wait_for(lambda: reads, "a read that began before the change")
    assert press(visitor, "disable", tenant="blue").status_code == 200
    assert ">disabled<" in visitor.get("/console/find-tenants?q=blue").text
    may_end.set()
    early.join(60)
    assert ">disabled<" in visitor.get("/console/find-tenants?q=blue").text


def test_without_the_admin_key_nothing_is_shown(keyed):
    rules = [rule for rule in keyed.application.url_map.iter_rules() if rule.rule.startswith("/console")]
    assert len(rules) > 20
    for rule in rules:
        path = re.sub(r"<[^>]+>", "x", rule.rule)
        for method in rule.methods - {"OPTIONS", "HEAD"}:
            answer = keyed.open(path, method=method)
            assert answer.status_code == 401, (method, path)
            assert answer.headers["WWW-Authenticate"].startswith("Basic"), (method, path)


def test_the_address_with_a_slash_leads_to_the_console(visitor):
    answer = visitor.get("/console/")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/console")


def test_the_key_opens_the_console_as_a_password_and_as_a_bearer_key(keyed, redis_client):
    key, _ = AdminKeys(redis_client).create("ada")
    assert keyed.get("/console", auth=("any", key)).status_code == 200
    assert keyed.get("/console", headers={"Authorization": f"Bearer {key}"}).status_code == 200
    assert keyed.get(f"/console?key={key}").status_code == 401


def test_every_page_forbids_scripts_and_styles_inside_it_and_every_other_host(visitor):
    headers = visitor.get("/console").headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert (headers["Cache-Control"], headers["Referrer-Policy"]) == ("no-store", "no-referrer")
    for name in ("vendor/htmx.min.js", "vendor/uPlot.iife.min.js", "console/console.css"):
        assert visitor.get(f"/static/{name}", buffered=True).status_code == 200


def test_a_page_that_may_call_the_api_can_neither_read_the_console_nor_press_its_buttons(store, settings, redis_client):
    visitor = a_door(store, settings, cors_origins="*")
    token = token_of(visitor.get("/console").text)
    foreign = {"Origin": "http://evil.example"}
    assert visitor.get("/console", headers=foreign).status_code == 403
    assert visitor.post("/console/drain-all", headers=foreign | {TOKEN_HEADER: token}).status_code == 403
    assert not Workers(redis_client).is_system_draining()


def test_the_stream_ends_when_the_operators_key_is_removed(keyed, store, redis_client, monkeypatch):
    monkeypatch.setattr(streams, "_CHECK_KEY_S", 0.0)
    heartbeat(store)
    key, _ = AdminKeys(redis_client).create("ada")
    stream = keyed.get("/console/live", headers={"Authorization": f"Bearer {key}"})
    frames = iter(stream.response)
    while b"event: point" not in next(frames):
        pass
    AdminKeys(redis_client).rm("ada")
    # Raises StopIteration at the end of the stream; pytest ends a test that waits for ever.
    assert sum(1 for _ in frames) < 60
    stream.close()

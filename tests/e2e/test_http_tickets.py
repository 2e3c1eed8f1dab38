"""Tickets: signed URLs that open one job's events, and nothing else, without an API key."""

import re
from urllib.parse import urlsplit

import pytest
from flask.testing import FlaskClient

from shared.accounts.api_keys import ApiKeys
from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import pass_time, view_of
from tests.support.door import a_door, admitted_job, fault, run_next, serve, settle, submit
from tests.support.processes import wait_for

ORIGIN = "https://page.example"


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    """A door that requires API keys."""
    serve(store)
    return a_door(store, settings, auth="required", cors_origins=ORIGIN)


@pytest.fixture
def key(store: Store) -> dict[str, str]:
    return {"Authorization": f"Bearer {ApiKeys(store.client).create('blue').key}"}


def test_a_ticket_opens_its_jobs_events_without_a_key(client: FlaskClient, store: Store, key: dict[str, str]) -> None:
    job = admitted_job(submit(client, ticket=True, headers=key))
    held = run_next(store)
    store.append([(held, "well", 1)])
    settle(store, held)
    answer = client.get(job["urls"]["events_signed"], headers={"Origin": ORIGIN})
    assert answer.status_code == 200
    assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert re.findall("^event: (.*)$", answer.text, re.MULTILINE) == ["queued", "started", "token", "ended"]
    again = client.get(job["urls"]["events_signed"], headers={"Last-Event-ID": re.findall("id: (.*)", answer.text)[1]})
    assert re.findall("^event: (.*)$", again.text, re.MULTILINE) == ["ended"]


def test_a_page_of_an_origin_that_is_not_configured_may_not_read_the_events(
    client: FlaskClient, key: dict[str, str]
) -> None:
    job = admitted_job(submit(client, ticket=True, headers=key))
    client.delete(job["urls"]["self"], headers=key)
    answer = client.get(job["urls"]["events_signed"], headers={"Origin": "https://other.example"})
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_a_submit_that_does_not_request_a_ticket_gets_none(client: FlaskClient, key: dict[str, str]) -> None:
    assert "events_signed" not in admitted_job(submit(client, headers=key))["urls"]
    assert "events_signed" not in admitted_job(submit(client, ticket=False, headers=key))["urls"]


def test_a_ticket_opens_nothing_but_the_events_of_its_job(client: FlaskClient, key: dict[str, str]) -> None:
    job, other = (admitted_job(submit(client, ticket=True, headers=key)) for _ in range(2))
    ticket = urlsplit(job["urls"]["events_signed"]).query
    fault(client.get(f"{other['urls']['events']}?{ticket}"), 401, "invalid_ticket", "ticket")
    for answer in (
        client.get(f"{job['urls']['self']}?{ticket}"),
        client.delete(f"{job['urls']['self']}?{ticket}"),
        client.get(f"/v1/jobs?{ticket}"),
    ):
        fault(answer, 401, "invalid_api_key")


@pytest.mark.parametrize(
    "alter", [lambda t: "", lambda t: "x", lambda t: t[:-1], lambda t: "9" + t, lambda t: t + "\n"]
)
def test_an_altered_ticket_opens_nothing(client: FlaskClient, key: dict[str, str], alter) -> None:
    job = admitted_job(submit(client, ticket=True, headers=key))
    ticket = urlsplit(job["urls"]["events_signed"]).query.removeprefix("ticket=")
    answer = client.get(job["urls"]["events"], query_string={"ticket": alter(ticket)})
    fault(answer, 401, "invalid_ticket", "ticket")


def test_a_ticket_expires_a_minute_after_the_deadline(client: FlaskClient, store: Store, key: dict[str, str]) -> None:
    job = admitted_job(submit(client, ticket=True, deadline_ms=5_000, headers=key))
    settle(store, run_next(store))
    pass_time(store, 60_000)
    assert client.get(job["urls"]["events_signed"]).status_code == 200
    pass_time(store, 6_000)
    fault(client.get(job["urls"]["events_signed"]), 401, "invalid_ticket", "ticket")


def test_tickets_of_a_disabled_tenant_open_nothing(client: FlaskClient, store: Store, key: dict[str, str]) -> None:
    job = admitted_job(submit(client, ticket=True, headers=key))
    Tenants(store.client).set("blue", TenantPolicy(disabled=True))
    path = f"/v1/jobs/{job['id']}"
    wait_for(lambda: client.get(path, headers=key).status_code == 403, "the door to notice the change", timeout_s=1)
    fault(client.get(job["urls"]["events_signed"]), 403, "tenant_disabled")


def test_every_door_accepts_the_same_tickets_and_a_new_secret_voids_them_all(
    client: FlaskClient, store: Store, settings: Settings, key: dict[str, str]
) -> None:
    job = admitted_job(submit(client, ticket=True, headers=key))
    client.delete(job["urls"]["self"], headers=key)
    other = a_door(store, settings, auth="required")
    assert other.get(job["urls"]["events_signed"]).status_code == 200
    store.client.delete(keys.secret())
    fault(other.get(job["urls"]["events_signed"]), 401, "invalid_ticket", "ticket")
    assert view_of(store, job["id"]).state == "canceled"

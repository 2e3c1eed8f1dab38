"""A refused client that sends its return ticket is recognized, on every route and over the gate."""

from typing import Any

import pytest
from flask.testing import FlaskClient

from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import MODEL, a_heartbeat, a_job, admitted, advance_clock, reconfigure, stat
from tests.support.door import a_door, serve
from tests.support.gate import Served, served, submit_frame

HEADER = "x-penstock-return-ticket"
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/jobs": {"prompt": "hello", "max_tokens": 20},
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hello", "max_tokens": 20},
    "/v1/responses": {"input": "hello", "max_output_tokens": 20, "background": True},
}


@pytest.fixture
def full(store: Store, settings: Settings) -> Store:
    """A store whose only place is taken; `open_up` adds places."""
    serve(store)
    reconfigure(store, settings, max_inflight=1)
    admitted(store, a_job("filler"))
    return store


def open_up(store: Store, settings: Settings, hint_ms: int) -> None:
    """Let the hint end, and admit jobs again."""
    advance_clock(store, hint_ms)
    reconfigure(store, settings, max_inflight=100)
    store.renew(a_heartbeat(), [])


def refused_with_ticket(door: FlaskClient, route: str) -> dict[str, Any]:
    response = door.post(route, json=BODIES[route])
    answer = response.get_json()
    assert (response.status_code, answer["status"]) == (503, "yield")
    assert answer["return_window_ms"] >= 2_000
    assert response.headers[HEADER] == answer["return_ticket"]
    assert "x-should-retry" not in response.headers
    return dict(answer)


def recognized(store: Store) -> int:
    """Return how many clients were admitted when they were expected."""
    return sum(stat(store, f"hint_returns|{tenant}|admitted") for tenant in ("blue", "default"))


@pytest.mark.parametrize("route", ["/v1/jobs", "/v1/responses"])
@pytest.mark.parametrize("place", ["body", "header"])
def test_a_ticket_in_the_body_or_the_header_makes_a_request_a_return(full, settings, route, place) -> None:
    door = a_door(full, settings)
    answer = refused_with_ticket(door, route)
    open_up(full, settings, answer["retry_hint_ms"])
    ticket = answer["return_ticket"]
    body = BODIES[route] | ({"return_ticket": ticket} if place == "body" else {})
    response = door.post(route, json=body, headers={HEADER: ticket} if place == "header" else {})
    assert response.status_code in {200, 201, 202}
    assert recognized(full) == 1
    assert full.client.zcard(keys.reservations(MODEL)) == 0


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
def test_the_openai_routes_refuse_with_a_ticket_and_accept_one_in_extra_fields(full, settings, route) -> None:
    door = a_door(full, settings)
    first = refused_with_ticket(door, route)
    advance_clock(full, first["retry_hint_ms"])
    full.renew(a_heartbeat(), [])
    again = door.post(route, json=BODIES[route] | {"return_ticket": first["return_ticket"]}).get_json()
    assert again["return_ticket"] != first["return_ticket"]
    assert sum(stat(full, f"hint_returns|{name}|refused") for name in ("blue", "default")) == 1


@pytest.mark.parametrize("place", ["body", "header"])
@pytest.mark.parametrize("ticket", ["forged", "1.0123456789abcdef." + "A" * 43, "", "9" * 5_000])
def test_a_forged_ticket_counts_as_none(full, settings, ticket, place) -> None:
    door = a_door(full, settings)
    answer = refused_with_ticket(door, "/v1/jobs")
    open_up(full, settings, answer["retry_hint_ms"])
    body = BODIES["/v1/jobs"] | ({"return_ticket": ticket} if place == "body" else {})
    response = door.post("/v1/jobs", json=body, headers={HEADER: ticket} if place == "header" else {})
    assert response.status_code in {200, 201, 202}
    assert recognized(full) == 0


def test_a_ticket_of_another_tenant_counts_as_none(full, settings) -> None:
    door = a_door(full, settings)
    answer = door.post("/v1/jobs", json=BODIES["/v1/jobs"], headers={"X-Tenant": "blue"}).get_json()
    open_up(full, settings, answer["retry_hint_ms"])
    headers = {"X-Tenant": "green", HEADER: answer["return_ticket"]}
    assert door.post("/v1/jobs", json=BODIES["/v1/jobs"], headers=headers).status_code in {200, 201, 202}
    assert recognized(full) == 0
    assert full.client.zcard(keys.reservations(MODEL)) == 1


@pytest.mark.parametrize("body", [{"deadline_ms": 60}, {"start_within_ms": 10}])
def test_a_refusal_that_asks_for_no_retry_has_no_ticket_and_makes_no_reservation(full, settings, body) -> None:
    response = a_door(full, settings).post("/v1/jobs", json=BODIES["/v1/jobs"] | body)
    assert response.headers["x-should-retry"] == "false"
    assert "return_ticket" not in response.get_json()
    assert HEADER not in response.headers
    assert full.client.zcard(keys.reservations(MODEL)) == 0


def test_the_same_idempotency_key_may_come_with_a_ticket(full, settings) -> None:
    door = a_door(full, settings)
    headers = {"Idempotency-Key": "k"}
    answer = door.post("/v1/jobs", json=BODIES["/v1/jobs"], headers=headers).get_json()
    open_up(full, settings, answer["retry_hint_ms"])
    body = BODIES["/v1/jobs"] | {"return_ticket": answer["return_ticket"]}
    first = door.post("/v1/jobs", json=body, headers=headers).get_json()
    assert door.post("/v1/jobs", json=BODIES["/v1/jobs"], headers=headers).get_json()["id"] == first["id"]


@pytest.mark.parametrize("place", ["frame", "body"])
def test_a_ticket_over_the_gate_makes_a_submit_a_return(full, settings, place) -> None:
    with served(full, settings) as gate:
        submit_over(gate, full, settings, place)


def submit_over(gate: Served, store: Store, settings: Settings, place: str) -> None:
    answer = gate.client.ask(submit_frame("a1"))
    assert answer["status"] == "yield"
    open_up(store, settings, answer["retry_hint_ms"])
    ticket = {"return_ticket": answer["return_ticket"]}
    frame = submit_frame("a2") | ticket if place == "frame" else submit_frame("a2", **ticket)
    assert gate.client.ask(frame)["status"] == "accepted"
    assert recognized(store) == 1
    # The ticket is used up.
    assert gate.client.ask(submit_frame("a3") | ticket)["status"] == "accepted"
    assert recognized(store) == 1

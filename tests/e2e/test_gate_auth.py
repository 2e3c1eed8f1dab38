"""The gate's `auth` frame, what a connection without a valid key may hold, and what happens when a key is removed."""

import threading
import time
from collections.abc import Iterator

import pytest

from shared.accounts.api_keys import ApiKeys
from shared.accounts.tenants import Tenants
from shared.jobs.states import JobState
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.builders import view_of
from tests.support.door import run_next, serve
from tests.support.gate import Frame, Served, served, submit_frame
from tests.support.processes import wait_for
from web.gate.stranger_budget import StrangerBudget

#: A revoked key must end what is open within about a second; the rest is for a busy machine.
SOON_S = 5
INVALID_KEY = "psk_" + "x" * 43


@pytest.fixture
def closed(store: Store, settings: Settings) -> Iterator[Served]:
    """A gate that requires API keys."""
    serve(store)
    with served(store, settings, auth="required") as gate:
        yield gate


@pytest.fixture
def key(store: Store) -> str:
    return ApiKeys(store.client).create("blue", label="laptop").key


def auth(key: str, **fields: object) -> Frame:
    return {"op": "auth", "tenant_key": key} | fields


def keyless(ref: str, **body: object) -> Frame:
    frame = submit_frame(ref, **body)
    del frame["tenant"]
    return frame


# The frame.


def test_frames_after_auth_need_no_key(closed: Served, store: Store, key: str) -> None:
    assert closed.client.ask(auth(key, ref="k")) == {"ref": "k", "status": "ok"}
    assert not closed.connection.is_stranger
    assert view_of(store, closed.client.ask(keyless("a1"))["id"]).tenant == "blue"
    assert closed.client.ask({"op": "metrics"})["inflight"] == 1


@pytest.mark.parametrize("wrong", [INVALID_KEY, "", "x", "psk_" + "x" * 500_000, "ключ"])
def test_an_invalid_key_is_answered_with_an_error_and_changes_no_limit(closed: Served, wrong: str) -> None:
    closed.client.fault(auth(wrong), "invalid_api_key")
    assert closed.connection.is_stranger
    assert closed.client.ask({"op": "ping"}) == {"status": "pong"}
    closed.client.fault(keyless("a1"), "invalid_api_key")
    closed.client.fault({"op": "auth"}, "invalid_value", "tenant_key")
    closed.client.fault(auth("x", tenant="blue"), "invalid_value", "tenant")


def test_the_latest_auth_frame_counts_also_if_it_fails(closed: Served, store: Store, key: str) -> None:
    red = ApiKeys(store.client).create("red").key
    assert closed.client.ask(auth(key)) == {"status": "ok"}
    assert closed.client.ask(auth(red)) == {"status": "ok"}
    assert view_of(store, closed.client.ask(keyless("a1"))["id"]).tenant == "red"
    closed.client.fault(auth(INVALID_KEY), "invalid_api_key")
    assert closed.connection.is_stranger
    closed.client.fault(keyless("a2"), "invalid_api_key")
    # A frame with a key of its own is served as before, and makes the connection known again.
    assert closed.client.ask(keyless("a3") | {"tenant_key": key})["status"] == "accepted"
    assert not closed.connection.is_stranger
    closed.client.fault(keyless("a4"), "invalid_api_key")


def test_the_key_is_judged_before_the_rest_of_a_submit(closed: Served, key: str) -> None:
    bad = keyless("a1") | {"sha256": "0", "tenant": "a b"}
    closed.client.fault(bad, "invalid_api_key")
    closed.client.fault(bad | {"tenant_key": key}, "invalid_value", "tenant")
    closed.client.fault(keyless("a1") | {"sha256": "0", "tenant_key": key}, "integrity", "sha256")


def test_metrics_need_a_key_unless_auth_is_open(closed: Served, store: Store, settings: Settings, key: str) -> None:
    closed.client.fault({"op": "metrics"}, "invalid_api_key")
    closed.client.fault({"op": "metrics", "tenant_key": INVALID_KEY}, "invalid_api_key")
    assert closed.client.ask({"op": "metrics", "tenant_key": key})["inflight"] == 0
    with served(store, settings) as gate:
        assert gate.client.ask({"op": "metrics"})["inflight"] == 0
        assert gate.client.ask({"op": "metrics", "tenant_key": "nonsense"})["inflight"] == 0
        assert gate.client.ask(auth("nonsense")) == {"status": "ok"}
        assert not gate.connection.is_stranger


def test_a_disabled_tenant_cannot_raise_its_limits(closed: Served, store: Store, key: str) -> None:
    Tenants(store.client).set("blue", TenantPolicy(disabled=True))
    closed.client.fault(auth(key), "tenant_disabled")
    assert closed.connection.is_stranger


# The bounds on strangers.


def test_a_long_first_frame_with_a_valid_key_is_served(closed: Served, key: str) -> None:
    answer = closed.client.ask(keyless("a1", metadata={"x": "y"}, prompt="word " * 1_500) | {"tenant_key": key})
    assert answer["status"] == "accepted"


def test_a_long_frame_from_nobody_has_less_time_than_one_from_a_tenant(
    store: Store, settings: Settings, key: str
) -> None:
    half = b'{"op":"submit","ref":"half","body":"' + b"x" * 5_000
    with (
        served(store, settings, auth="required", stranger_frame_s=0.2) as nobody,
        served(store, settings, auth="required", stranger_frame_s=0.2) as tenant,
    ):
        assert tenant.client.ask(auth(key)) == {"status": "ok"}
        tenant.client.send(half)
        nobody.client.send(b'{"op":"ping","ref":"short')
        began_s = time.monotonic()
        wait_for(lambda: time.monotonic() - began_s > 0.6, "three times the limit")
        assert nobody.client.ask(b'"}\n') == {"ref": "short", "status": "pong"}
        nobody.client.send(half)
        answer = nobody.client.read()
        assert (answer["ref"], answer["code"]) == ("half", "half_frame")
        assert "within 0.2 s; show a key first" in answer["error"]["message"]
        assert nobody.client.ask(b'"}\n{"op":"ping"}\n') == {"status": "pong"}
        assert tenant.client.ask(b'"}\n')["code"] == "integrity"


def test_when_the_budget_is_full_the_frame_that_was_held_the_longest_is_dropped(
    store: Store, settings: Settings, key: str
) -> None:
    serve(store)
    budget = StrangerBudget(100_000)
    half = b'{"op":"submit","ref":"half","body":"' + b"x" * 60_000
    with (
        served(store, settings, auth="required", budget=budget) as oldest,
        served(store, settings, auth="required", budget=budget) as newest,
    ):
        oldest.client.send(half)
        wait_for(lambda: budget.held_bytes > 60_000, "the first half frame to be held")
        newest.client.send(half)
        wait_for(lambda: 60_000 < budget.held_bytes < 61_000 and oldest.connection._dropped is not None, "a drop")
        answer = oldest.client.ask(b"more")
        assert (answer["ref"], answer["code"]) == ("half", "auth_required")
        # The rest of the dropped frame is skipped, and the frames after it are served.
        assert oldest.client.ask(b'"}\n{"op":"ping"}\n') == {"status": "pong"}
        assert newest.client.ask(b'"}\n')["code"] == "invalid_api_key"
        assert budget.held_bytes == 0
        # One that could never fit is dropped alone, also if it arrives in one piece.
        newest.client.send(half[:-50_000])
        wait_for(lambda: budget.held_bytes > 10_000, "another half frame to be held")
        assert oldest.client.ask(half * 2)["code"] == "auth_required"
        assert budget.held_bytes > 10_000
        oldest.client.ask(b'\n{"op":"ping"}\n')
        assert oldest.client.ask(auth(key)) == {"status": "ok"}
        assert oldest.client.ask(keyless("a1", prompt="x" * 30_000) | {"encoding": None})["status"] == "accepted"
    assert budget.held_bytes == 0


def test_a_connection_without_a_key_is_closed_earlier_when_idle(store: Store, settings: Settings, key: str) -> None:
    with (
        served(store, settings, auth="required", stranger_idle_s=1) as nobody,
        served(store, settings, auth="required", stranger_idle_s=1) as tenant,
    ):
        assert tenant.client.ask(auth(key)) == {"status": "ok"}
        assert nobody.client.read()["code"] == "idle"
        assert nobody.client.is_closed()
        assert tenant.client.ask({"op": "ping"}) == {"status": "pong"}


def test_a_client_without_a_key_that_reads_nothing_leaves_few_answers_unsent(closed: Served) -> None:
    closed.client.socket.settimeout(0.2)
    pings = b'{"op":"ping","ref":"%s"}\n' % (b"x" * 200) * 50_000
    with pytest.raises(TimeoutError):
        closed.client.socket.sendall(pings)
    assert closed.connection._outbox._unsent < 3 * 4_096


# The end of a key.


def remove(store: Store, label: str = "laptop") -> None:
    assert ApiKeys(store.client).rm(label)


def disable(store: Store) -> None:
    Tenants(store.client).set("blue", TenantPolicy(disabled=True))


@pytest.mark.parametrize(("end", "code"), [(remove, "invalid_api_key"), (disable, "tenant_disabled")])
def test_the_end_of_a_key_ends_its_connection_and_cancels_its_jobs(
    closed: Served, store: Store, key: str, end, code: str
) -> None:
    assert closed.client.ask(auth(key)) == {"status": "ok"}
    running, waiting = closed.client.ask(keyless("a1"))["id"], closed.client.ask(keyless("a2"))["id"]
    run_next(store)
    began_s = time.monotonic()
    end(store)
    frames = list(iter(lambda: read_or_none(closed), None))
    assert [(frame["status"], frame["code"]) for frame in frames] == [("error", code)] * 3
    assert {frame.get("ref") for frame in frames} == {"a1", "a2", None}
    assert time.monotonic() - began_s < SOON_S
    assert closed.ended()
    assert view_of(store, waiting).state is JobState.CANCELED
    assert view_of(store, running).cancel_requested


def read_or_none(gate: Served) -> Frame | None:
    try:
        return gate.client.read()
    except AssertionError:
        return None


def test_a_relay_keeps_its_connection_when_one_of_its_keys_ends(closed: Served, store: Store, key: str) -> None:
    red = ApiKeys(store.client).create("red").key
    kept = closed.client.ask(keyless("red") | {"tenant_key": red})["id"]
    lost = closed.client.ask(keyless("blue") | {"tenant_key": key})["id"]
    remove(store)
    last = closed.client.read()
    assert (last["ref"], last["status"], last["code"]) == ("blue", "error", "invalid_api_key")
    wait_for(lambda: view_of(store, lost).state is JobState.CANCELED, "the job of the removed key to be canceled")
    assert closed.connection.is_stranger
    assert view_of(store, kept).state is JobState.QUEUED
    assert closed.client.ask({"op": "status", "ref": "red"})["status"] == "queued"
    assert closed.client.ask(auth(red)) == {"status": "ok"}


def test_a_tenant_that_is_enabled_again_can_use_its_connection_again(closed: Served, store: Store, key: str) -> None:
    red = ApiKeys(store.client).create("red").key
    assert closed.client.ask(keyless("red") | {"tenant_key": red})["status"] == "accepted"
    assert closed.client.ask(auth(key)) == {"status": "ok"}
    disable(store)
    wait_for(lambda: closed.connection.is_stranger, "the end of the tenant's key")
    Tenants(store.client).set("blue", TenantPolicy())
    wait_for(lambda: closed.client.ask(auth(key))["status"] == "ok", "the gate to know that the tenant is enabled")
    assert not closed.connection.is_stranger
    job = closed.client.ask(keyless("blue"))
    assert view_of(store, job["id"]).state is JobState.QUEUED
    assert closed.client.ask({"op": "status", "ref": "blue"})["status"] == "queued"


def test_a_store_outage_ends_no_connection(closed: Served, store: Store, key: str) -> None:
    assert closed.client.ask(auth(key)) == {"status": "ok"}
    store.client.client_pause(1_500)
    passed = threading.Event()
    passed.wait(1.5)
    store.client.client_unpause()
    assert closed.client.ask({"op": "ping"}) == {"status": "pong"}
    assert not closed.connection.is_stranger

"""One connection to the gate over a real store: its answers, its errors, and its API keys."""

import base64
import hashlib
import itertools
import json
import random
from collections.abc import Iterator

import pytest

from shared.accounts.api_keys import ApiKeys
from shared.accounts.tenants import Tenants
from shared.jobs.outcomes import Outcome
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.answers import answer_in_two_attempts
from tests.support.builders import reconfigure, stat, view_of
from tests.support.door import door_store, run_next, serve, settle
from tests.support.gate import Served, served, submit_frame
from tests.support.processes import wait_for


@pytest.fixture
def gate(store: Store, settings: Settings) -> Iterator[Served]:
    """An open gate with a live worker behind it."""
    serve(store)
    with served(store, settings) as gate:
        yield gate


@pytest.fixture
def closed(store: Store, settings: Settings) -> Iterator[Served]:
    """A gate that requires API keys."""
    serve(store)
    with served(store, settings, auth="required") as gate:
        yield gate


# Jobs.


def test_a_job_is_accepted_and_its_end_is_sent_with_its_tag(gate: Served, store: Store) -> None:
    answer = gate.client.ask(submit_frame("a1", deadline_ms=20_000))
    view = view_of(store, answer["id"])
    assert answer == {"ref": "a1", "status": "accepted", "id": view.id}
    assert (view.tenant, view.deadline_ms, view.deadline_source) == ("blue", 20_000, "body")
    settle(store, run_next(store))
    last = gate.client.read()
    assert (last["ref"], last["status"], last["id"], last["text"]) == ("a1", "succeeded", view.id, "some words")
    assert last["usage"]["completion_tokens"] == 20
    assert "error" not in last


def test_a_body_may_be_base64(gate: Served, store: Store) -> None:
    text = json.dumps({"prompt": "žluťoučký", "max_tokens": 2}, ensure_ascii=False).encode()
    digest = hashlib.sha256(text).hexdigest()
    frame = {"op": "submit", "body": base64.b64encode(text).decode(), "encoding": "base64", "sha256": digest}
    answer = gate.client.ask(frame)
    assert answer["status"] == "accepted"
    assert view_of(store, answer["id"]).tenant == "default"


def test_the_last_frame_of_a_failed_job_says_why(gate: Served, store: Store) -> None:
    gate.client.submitted()
    settle(store, run_next(store), outcome=Outcome.FAILED, code="engine_error")
    last = gate.client.read()
    assert (last["status"], last["error"]["code"]) == ("failed", "engine_error")


def test_each_of_many_inflight_jobs_ends_with_its_own_tag(gate: Served, store: Store) -> None:
    gate.client.send(*(submit_frame(number, tenant=f"t{number}") for number in range(20)))
    answers = [gate.client.read() for _ in range(20)]
    assert [answer["ref"] for answer in answers] == list(range(20))
    ids = {answer["ref"]: answer["id"] for answer in answers}
    for _ in range(20):
        settle(store, run_next(store))
    last_frames = gate.client.read_by_ref(20)
    assert {ref: end["id"] for ref, end in last_frames.items()} == ids
    assert {end["status"] for end in last_frames.values()} == {"succeeded"}


def test_jobs_are_offered_in_the_order_of_their_frames(gate: Served, store: Store) -> None:
    gate.client.send(*(submit_frame(number, deadline_ms=60_000) for number in range(10)))
    ids = [gate.client.read()["id"] for _ in range(10)]
    for expected in ids:
        held = run_next(store)
        assert held.id == expected
        settle(store, held)
    gate.client.read_by_ref(10)


def test_a_streamed_job_sends_its_text_as_it_is_generated(gate: Served, store: Store) -> None:
    job_id = gate.client.ask(submit_frame() | {"stream": True})["id"]
    held = run_next(store)
    started = {"ref": "a1", "status": "started", "id": job_id, "attempt": 1}
    assert gate.client.read() == started
    store.append([(held, "some ", 10)])
    assert gate.client.read() == {"ref": "a1", "status": "text", "id": job_id, "text": "some ", "tokens": 10}
    store.append([(held, "words", 20)])
    assert gate.client.read()["text"] == "words"
    settle(store, held)
    assert gate.client.read()["status"] == "succeeded"


def test_a_streamed_job_that_continues_elsewhere_says_so_and_sends_only_new_text(gate: Served, store: Store) -> None:
    gate.client.ask(submit_frame() | {"stream": True})
    answer_in_two_attempts(store, run_next(store), ["some "], ["words"])
    frames = [gate.client.read() for _ in range(5)]
    assert [frame.get("text", frame.get("resumed")) for frame in frames] == [None, "some ", True, "words", "some words"]


def test_a_tag_can_be_used_again_after_its_last_frame(gate: Served, store: Store) -> None:
    first = gate.client.submitted("a1")
    gate.client.fault(submit_frame("a1"), "invalid_value", "ref")
    settle(store, run_next(store))
    assert gate.client.read()["id"] == first
    assert gate.client.submitted("a1") != first


def test_the_status_of_a_job_can_be_requested(gate: Served, store: Store) -> None:
    gate.client.submitted("a1")
    job_id = gate.client.submitted("a2")
    status = gate.client.ask({"op": "status", "ref": "a2"})
    assert (status["ref"], status["status"], status["id"]) == ("a2", "queued", job_id)
    assert status["queue"]["position"] == 2
    run_next(store)
    assert gate.client.ask({"op": "status", "ref": "a1"})["status"] == "running"
    gate.client.fault({"op": "status", "ref": "a3"}, "job_not_found", "ref")


# Refusals and errors.


def test_a_refusal_has_the_same_fields_as_over_http_and_leaves_no_job(
    gate: Served, store: Store, settings: Settings
) -> None:
    reconfigure(store, settings, max_inflight=1)
    gate.client.submitted("a1")
    answer = gate.client.ask(submit_frame("a2", tenant="red"))
    assert (answer["ref"], answer["status"], answer["reason"]) == ("a2", "yield", "inflight_full")
    assert 50 <= answer["retry_hint_ms"] <= 60_000
    assert answer["limits"]["max_inflight"] == 1
    assert gate.client.ask({"op": "metrics"}) == {"inflight": 1, "executed_total": 0, "yielded_total": 1}
    gate.client.fault({"op": "status", "ref": "a2"}, "job_not_found", "ref")


def test_a_higher_attempt_number_gets_a_longer_retry_hint(gate: Served, store: Store, settings: Settings) -> None:
    reconfigure(store, settings, max_inflight=1)
    gate.client.submitted("a1")
    frames = [submit_frame("a2", prompt=f"attempt {attempt}") | {"attempt": attempt} for attempt in (0, 3)]
    hints = [gate.client.ask(frame)["retry_hint_ms"] for frame in frames]
    assert hints[1] > hints[0]


@pytest.mark.parametrize("sha256", [None, "0" * 64, "", 7])
def test_a_frame_with_a_wrong_digest_is_an_error_and_is_not_counted(gate: Served, store: Store, sha256: object) -> None:
    gate.client.fault(submit_frame() | {"sha256": sha256}, "integrity", "sha256")
    assert store.snapshot().inflight == 0
    assert (stat(store, "yielded"), stat(store, "offered_tokens")) == (0, 0)


def test_an_invalid_body_gets_the_same_error_as_over_http(gate: Served) -> None:
    gate.client.fault(submit_frame(colour="red"), "invalid_value", "colour")
    gate.client.fault(submit_frame(deadline_ms=600_001), "invalid_value", "deadline_ms")
    gate.client.fault(submit_frame(prompt="nul \0 inside"), "invalid_value", "prompt")
    gate.client.fault(submit_frame(model="never seen"), "model_not_found", "model")
    text = "not json"
    digest = hashlib.sha256(text.encode()).hexdigest()
    gate.client.fault({"op": "submit", "body": text, "sha256": digest}, "invalid_json")
    gate.client.fault({"op": "submit", "body": "[]", "sha256": hashlib.sha256(b"[]").hexdigest()}, "invalid_value")


def test_a_schema_that_cannot_be_enforced_is_the_clients_error(gate: Served) -> None:
    form = {"type": "json_object", "schema": {"not": {"type": "null"}}}
    gate.client.fault(submit_frame(response_format=form), "unsupported_parameter", "response_format")


def test_a_bad_frame_gets_one_error_and_does_not_affect_other_frames(gate: Served, store: Store) -> None:
    job_id = gate.client.submitted("a1")
    gate.client.send(
        b"{bad\n", b"\xff\xfe\n", b"\r\n", b"7\n", {"op": "ping", "ref": "p"}, b'{"op":"ping"', b',"x":1}\n'
    )
    answers = [gate.client.read() for _ in range(5)]
    assert [answer.get("code") for answer in answers] == [
        "invalid_json",
        "invalid_json",
        "invalid_value",
        None,
        "invalid_value",
    ]
    assert answers[3] == {"ref": "p", "status": "pong"}
    settle(store, run_next(store))
    assert gate.client.read()["id"] == job_id


@pytest.mark.parametrize("seed", range(5))
def test_corrupt_frames_get_one_answer_each_and_the_connection_stays_open(gate: Served, seed: int) -> None:
    dice = random.Random(seed)
    lines = []
    for number in range(40):
        line = bytearray(json.dumps(submit_frame(number)).encode())
        for _ in range(dice.choice([1, 1, 3, 30])):
            place = dice.randint(0, len(line))
            line[place : place + dice.choice([0, 1, 20])] = dice.randbytes(dice.choice([0, 1, 2])).replace(b"\n", b"")
        lines.append(bytes(line))
    stream = b"\n".join([*lines, b'{"op":"ping","ref":"last"}', b""])
    while stream:
        size = dice.choice([1, 7, 100, 5_000])
        gate.client.send(stream[:size])
        stream = stream[size:]
    answers = [gate.client.read() for _ in range(sum(bool(line.strip()) for line in lines))]
    assert {answer["status"] for answer in answers} <= {"accepted", "yield", "error"}
    assert {answer["code"] for answer in answers if answer["status"] == "error"} >= {"invalid_json", "integrity"}
    assert gate.client.read() == {"ref": "last", "status": "pong"}


def test_a_frame_over_the_size_limit_gets_an_error_and_is_skipped(store: Store, settings: Settings) -> None:
    serve(store)
    with served(store, settings, frame_bytes=2_048) as gate:
        job_id = gate.client.submitted("a1")
        gate.client.send(json.dumps({"op": "submit", "ref": "big", "body": "x" * 100_000}).encode())
        # The error is sent before the end of the frame has arrived.
        answer = gate.client.read()
        assert (answer["ref"], answer["code"]) == ("big", "request_too_large")
        assert "2048 bytes (PENSTOCK_MAX_BODY_BYTES)" in answer["error"]["message"]
        gate.client.send(b"x" * 100_000 + b'\n{"op":"ping"}\n')
        assert gate.client.read() == {"status": "pong"}
        settle(store, run_next(store))
        assert gate.client.read()["id"] == job_id


def test_the_number_of_inflight_jobs_of_a_connection_is_bounded(store: Store, settings: Settings) -> None:
    serve(store)
    with served(store, settings, jobs=2) as gate:
        gate.client.submitted("a1")
        gate.client.submitted("a2")
        gate.client.fault(submit_frame("a3"), "too_many_frames")
        settle(store, run_next(store))
        assert gate.client.read()["ref"] == "a1"
        gate.client.submitted("a3")


def test_requests_get_a_yield_while_the_store_does_not_answer(store: Store, store_url: str, settings: Settings) -> None:
    serve(store)
    with served(door_store(store_url), settings) as gate:
        assert gate.client.ask({"op": "ping"}) == {"status": "pong"}
        store.client.client_pause(3_000)
        for frame in (submit_frame("a1"), {"op": "metrics", "ref": "m"}):
            answer = gate.client.ask(frame)
            assert (answer["ref"], answer["status"], answer["reason"]) == (frame["ref"], "yield", "store_unavailable")
        store.client.client_unpause()
        gate.client.submitted("a1")


# Keys and tenants.


def test_an_api_key_identifies_its_tenant(closed: Served, store: Store) -> None:
    key = ApiKeys(store.client).create("blue", label="laptop").key
    closed.client.fault(submit_frame(), "invalid_api_key")
    closed.client.fault(submit_frame() | {"tenant_key": "psk_invented"}, "invalid_api_key")
    frame = submit_frame() | {"tenant_key": key}
    del frame["tenant"]
    assert view_of(store, closed.client.ask(frame)["id"]).tenant == "blue"


def test_only_a_key_that_may_act_for_other_tenants_can_name_one(closed: Served, store: Store) -> None:
    api_keys = ApiKeys(store.client)
    plain, gateway = api_keys.create("blue").key, api_keys.create("gateway", act_as="team-*").key
    closed.client.fault(submit_frame(tenant="team-a") | {"tenant_key": plain}, "tenant_not_allowed", "tenant")
    closed.client.fault(submit_frame(tenant="red") | {"tenant_key": gateway}, "tenant_not_allowed", "tenant")
    answer = closed.client.ask(submit_frame(tenant="team-a") | {"tenant_key": gateway})
    assert view_of(store, answer["id"]).tenant == "team-a"


def test_a_removed_key_stops_working_on_an_open_connection(closed: Served, store: Store) -> None:
    key = ApiKeys(store.client).create("blue", label="laptop").key
    assert closed.client.ask(submit_frame(1) | {"tenant_key": key})["status"] == "accepted"
    ApiKeys(store.client).rm("laptop")
    again = (submit_frame(ref) | {"tenant_key": key} for ref in itertools.count(3))

    def is_refused() -> bool:
        """Submit another job; it may also meet the end of a connection whose last key has ended."""
        try:
            closed.client.send(next(again))
            answer = closed.client.read_or_end()
        except ConnectionError:
            return True
        assert answer is None or answer["status"] in {"accepted", "yield"} or answer["code"] == "invalid_api_key"
        return answer is None or answer["status"] == "error"

    wait_for(is_refused, "the gate to notice the removal", timeout_s=1)
    assert is_refused()


def test_a_disabled_tenant_gets_the_error_tenant_disabled(gate: Served, store: Store) -> None:
    Tenants(store.client).set("blue", TenantPolicy(disabled=True))
    gate.client.fault(submit_frame(), "tenant_disabled")
    gate.client.submitted("a2", tenant="red")


@pytest.mark.parametrize("tenant", ["", "a b", "x" * 65, "ž", "a:b"])
def test_an_invalid_tenant_name_is_an_error(gate: Served, tenant: str) -> None:
    gate.client.fault(submit_frame(tenant=tenant), "invalid_value", "tenant")


def test_keys_are_ignored_if_auth_is_open(gate: Served, store: Store) -> None:
    answer = gate.client.ask(submit_frame() | {"tenant_key": "nonsense"})
    assert view_of(store, answer["id"]).tenant == "blue"

"""The client of the door against doors that misbehave: lost answers, broken streams, hints, proxies' pages."""

import json
from collections.abc import Callable

import pytest

from shared.cli.client import DoorError, JobClient, Yielded
from shared.cli.sse import ServerEvent, read_events
from shared.clock import HeldClock
from shared.errors import ConfigError
from tests.support.scripted_door import a_door, hangs_up, says, streams

QUEUED = {"id": "j1", "status": "queued", "queue": {"position": 2, "eta_ms": None, "poll_after_ms": 300}}
RUNNING = {"id": "j1", "status": "running", "queue": {"position": None, "poll_after_ms": 200}}
DONE = {"id": "j1", "status": "succeeded", "queue": None, "text": "once"}
FULL = {
    "status": "yield",
    "retry_hint_ms": 1840,
    "reason": "inflight_full",
    "error": {"message": "64 of 64", "code": "inflight_full"},
}


@pytest.fixture
def clock() -> HeldClock:
    return HeldClock()


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def client(clock: HeldClock, slept: list[float]) -> Callable[..., JobClient]:
    """A client whose time passes only by its own sleeping."""

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(seconds)

    return lambda url, **named: JobClient(url, clock=clock, sleep=sleep, **named)


def test_a_job_is_offered_with_key_tenant_and_body(client: Callable[..., JobClient]) -> None:
    with a_door(says(202, QUEUED)) as door:
        assert client(door.url, api_key="psk_1", tenant="blue").submit({"prompt": "x"}) == QUEUED
    ((method, path, headers, body),) = door.asked
    assert (method, path, body) == ("POST", "/v1/jobs", {"prompt": "x"})
    assert (headers["Authorization"], headers["X-Tenant"]) == ("Bearer psk_1", "blue")
    assert len(headers["Idempotency-Key"]) == 36


def test_a_lost_answer_is_asked_for_again_under_the_same_idempotency_key(client: Callable[..., JobClient]) -> None:
    with a_door(hangs_up, hangs_up, says(202, QUEUED)) as door:
        assert client(door.url).submit({"prompt": "x"}) == QUEUED
    assert len(door.asked) == 3
    assert len({headers["Idempotency-Key"] for _, _, headers, _ in door.asked}) == 1


def test_a_yield_is_a_value_with_its_hint(client: Callable[..., JobClient], slept: list[float]) -> None:
    with a_door(says(503, FULL)) as door:
        refusal = client(door.url).submit({"prompt": "x"})
    assert refusal == Yielded("inflight_full", 1840, "64 of 64", FULL)
    assert slept == []


def test_a_patient_client_comes_back_after_each_hint_and_says_how_often(
    client: Callable[..., JobClient], slept: list[float]
) -> None:
    told: list[Yielded] = []
    with a_door(says(503, FULL), says(429, FULL), says(202, QUEUED)) as door:
        assert client(door.url).submit({"prompt": "x"}, wait_s=10, on_yield=told.append) == QUEUED
    assert slept == [1.84, 1.84]
    assert [headers["X-Attempt"] for _, _, headers, _ in door.asked] == ["0", "1", "2"]
    assert [refusal.reason for refusal in told] == ["inflight_full"] * 2


def test_a_hint_beyond_the_patience_is_not_waited_for(client: Callable[..., JobClient], slept: list[float]) -> None:
    with a_door(says(503, FULL), says(503, FULL)) as door:
        assert isinstance(client(door.url).submit({"prompt": "x"}, wait_s=3), Yielded)
    assert slept == [1.84]


def test_a_refusal_that_no_return_mends_is_not_tried_again(
    client: Callable[..., JobClient], slept: list[float]
) -> None:
    with a_door(says(503, FULL, x_should_retry="false")) as door:
        refusal = client(door.url).submit({"prompt": "x"}, wait_s=60)
    assert isinstance(refusal, Yielded)
    assert refusal.retry_hint_ms is None
    assert slept == []


def test_polls_come_when_the_door_says_until_the_job_has_ended(
    client: Callable[..., JobClient], slept: list[float]
) -> None:
    with a_door(says(200, RUNNING), says(200, DONE)) as door:
        assert list(client(door.url).watch(QUEUED)) == [QUEUED, RUNNING, DONE]
    assert slept == [0.3, 0.2]
    assert {path for _, path, _, _ in door.asked} == {"/v1/jobs/j1"}


def test_polling_outlasts_a_door_that_restarts_and_a_store_that_is_away(client: Callable[..., JobClient]) -> None:
    away = FULL | {"reason": "store_unavailable", "retry_hint_ms": 1000}
    with a_door(hangs_up, says(503, away), hangs_up, says(200, DONE)) as door:
        assert list(client(door.url).watch(QUEUED)) == [QUEUED, DONE]


def test_a_store_that_stays_away_ends_the_polling(client: Callable[..., JobClient], clock: HeldClock) -> None:
    away = FULL | {"reason": "store_unavailable", "retry_hint_ms": 10_000}
    with a_door(*[says(503, away)] * 8) as door, pytest.raises(DoorError, match="cannot answer now"):
        list(client(door.url).watch(QUEUED))
    assert clock.monotonic() >= 1060


def test_a_broken_stream_is_taken_up_where_it_broke(client: Callable[..., JobClient]) -> None:
    first = 'id: 1-0\nevent: started\ndata: {"attempt": 1}\n\nid: 2-0\nevent: token\ndata: {"text": "on"}\n\nid: 3'
    second = (
        f': \n\nid: 3-0\nevent: token\ndata: {{"text": "ce"}}\n\nid: 4-0\nevent: ended\ndata: {json.dumps(DONE)}\n\n'
    )
    with a_door(streams(first), hangs_up, says(502, b"<html>"), streams(second)) as door:
        events = list(client(door.url).follow("j1"))
    assert [event.kind for event in events] == ["started", "token", "token", "ended"]
    assert "".join(event.data["text"] for event in events if event.kind == "token") == "once"
    assert [headers.get("Last-Event-Id") for _, _, headers, _ in door.asked] == [None, "2-0", "2-0", "2-0"]


def test_a_stream_that_never_comes_back_is_a_fault(client: Callable[..., JobClient]) -> None:
    with a_door(*[hangs_up] * 10) as door, pytest.raises(DoorError, match="no answer"):
        list(client(door.url).follow("j1"))
    assert 1 < len(door.asked) < 10


def test_a_stream_that_the_door_breaks_off_says_why(client: Callable[..., JobClient]) -> None:
    said = 'event: error\ndata: {"error": {"message": "no job", "code": "job_not_found"}}\n\n'
    with a_door(streams(said)) as door, pytest.raises(DoorError, match="broke off the stream: no job"):
        list(client(door.url).follow("j1"))


def test_a_stream_of_an_unknown_job_is_told_at_once(client: Callable[..., JobClient], slept: list[float]) -> None:
    gone = {"error": {"message": "no job 'j1'", "code": "job_not_found"}}
    with a_door(says(404, gone)) as door, pytest.raises(DoorError, match="no job 'j1'"):
        list(client(door.url).follow("j1"))
    assert slept == []


def test_an_error_of_the_door_carries_its_sentence_code_and_field(client: Callable[..., JobClient]) -> None:
    error = {"error": {"message": "deadline_ms=0 is below 1", "code": "invalid_value", "param": "deadline_ms"}}
    with a_door(says(422, error)) as door, pytest.raises(DoorError) as fault:
        client(door.url).submit({"prompt": "x"})
    assert (fault.value.status, fault.value.code) == (422, "invalid_value")
    assert "deadline_ms=0 is below 1 (deadline_ms)" in str(fault.value)


def test_a_page_of_a_proxy_is_no_answer_of_the_door(client: Callable[..., JobClient]) -> None:
    with a_door(says(503, b"<html>busy</html>")) as door, pytest.raises(DoorError, match=r"503.*<html>busy"):
        client(door.url).submit({"prompt": "x"})


@pytest.mark.parametrize("body", [b"<html>welcome</html>", {"hello": "world"}, [], b""])
def test_an_address_of_something_else_is_told_as_such(client: Callable[..., JobClient], body: object) -> None:
    with a_door(says(200, body)) as door, pytest.raises(DoorError, match="is PENSTOCK_URL a door of Penstock"):
        client(door.url).job("j1")


def test_a_redirect_is_not_followed_with_the_key(client: Callable[..., JobClient]) -> None:
    with a_door(says(200, DONE)) as elsewhere, a_door(says(302, {}, Location=elsewhere.url)) as door:
        with pytest.raises(DoorError, match="302"):
            client(door.url, api_key="psk_1").job("j1")
        assert elsewhere.asked == []


def test_nobody_at_the_address_is_told_at_once_when_a_job_is_offered(
    client: Callable[..., JobClient], slept: list[float]
) -> None:
    with pytest.raises(DoorError, match=r"http://127\.0\.0\.1:1 \(PENSTOCK_URL\).*refused"):
        client("http://127.0.0.1:1").submit({"prompt": "x"})
    assert slept == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "ftp://door",
        "file:///etc/passwd",
        "http://",
        "http://[::1",
        "http://door:99999",
        "http://door:x",
        "http://a b",
        "http://door/\u00f6",
    ],
)
def test_an_address_that_is_none_is_quoted(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        JobClient(url)
    assert f"PENSTOCK_URL={url!r}" in str(refused.value)


@pytest.mark.parametrize("tenant", ["a b", "\u0451", "a\nb"])
def test_a_tenant_that_is_none_is_quoted(tenant: str) -> None:
    with pytest.raises(ConfigError, match="tenant=") as refused:
        JobClient("http://door", tenant=tenant)
    assert repr(tenant) in str(refused.value)


@pytest.mark.parametrize("key", ["psk_abc\u2026", "psk abc", "psk_abc\n"])
def test_a_key_that_is_none_is_told_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError, match="PENSTOCK_API_KEY") as refused:
        JobClient("http://door", api_key=key)
    assert "abc" not in str(refused.value)


def test_a_proxy_of_the_environment_is_not_asked_for_loopback(
    client: Callable[..., JobClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with a_door(says(200, DONE)) as door:
        assert client(door.url).job("j1") == DONE


def test_a_job_id_stays_one_part_of_the_path(client: Callable[..., JobClient]) -> None:
    with a_door(says(200, DONE)) as door:
        client(door.url).cancel("../../v1/queue?x")
    assert door.asked[0][:2] == ("DELETE", "/v1/jobs/..%2F..%2Fv1%2Fqueue%3Fx")


def test_events_are_read_with_comments_many_lines_and_any_line_end() -> None:
    lines = (
        ': hello\n\nid: 7-1\nevent: token\ndata: {\ndata: "text": "a"}\n\n: \nid:8-0\r\nevent:ended\r\ndata:{}\r\n\r\n'
    )
    assert list(read_events(iter(lines.splitlines(keepends=True)))) == [
        ServerEvent("7-1", "token", {"text": "a"}),
        ServerEvent("8-0", "ended", {}),
    ]

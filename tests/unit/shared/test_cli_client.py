"""Tests the command line's client against doors with lost answers, broken streams, retry hints and proxy pages."""

import json
from collections.abc import Callable

import pytest

from shared.cli.client import JobClient, YieldAnswer
from shared.cli.door_client import DoorError
from shared.cli.sse import ServerEvent, read_events
from shared.clock import ManualClock
from shared.errors import ConfigError
from tests.support.scripted_door import close_connection, event_stream, json_answer, scripted_door

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
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def client(clock: ManualClock, slept: list[float]) -> Callable[..., JobClient]:
    """Makes clients whose clock advances only while they sleep."""

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(seconds)

    return lambda url, **options: JobClient(url, clock=clock, sleep=sleep, **options)


def test_a_job_is_submitted_with_the_api_key_the_tenant_and_the_body(client: Callable[..., JobClient]) -> None:
    with scripted_door(json_answer(202, QUEUED)) as door:
        assert client(door.url, api_key="psk_1", tenant="blue").submit({"prompt": "x"}) == QUEUED
    ((method, path, headers, body),) = door.requests
    assert (method, path, body) == ("POST", "/v1/jobs", {"prompt": "x"})
    assert (headers["Authorization"], headers["X-Tenant"]) == ("Bearer psk_1", "blue")
    assert len(headers["Idempotency-Key"]) == 36


def test_a_submit_without_an_answer_is_repeated_with_the_same_idempotency_key(client: Callable[..., JobClient]) -> None:
    with scripted_door(close_connection, close_connection, json_answer(202, QUEUED)) as door:
        assert client(door.url).submit({"prompt": "x"}) == QUEUED
    assert len(door.requests) == 3
    assert len({headers["Idempotency-Key"] for _, _, headers, _ in door.requests}) == 1


def test_a_yield_is_returned_with_its_retry_hint(client: Callable[..., JobClient], slept: list[float]) -> None:
    with scripted_door(json_answer(503, FULL)) as door:
        refusal = client(door.url).submit({"prompt": "x"})
    assert refusal == YieldAnswer("inflight_full", 1840, "64 of 64", FULL)
    assert slept == []


def test_a_client_that_may_wait_retries_after_each_hint_and_sends_its_attempt_number(
    client: Callable[..., JobClient], slept: list[float]
) -> None:
    yields: list[YieldAnswer] = []
    with scripted_door(json_answer(503, FULL), json_answer(429, FULL), json_answer(202, QUEUED)) as door:
        assert client(door.url).submit({"prompt": "x"}, wait_s=10, on_yield=yields.append) == QUEUED
    assert slept == [1.84, 1.84]
    assert [headers["X-Attempt"] for _, _, headers, _ in door.requests] == ["0", "1", "2"]
    assert [refusal.reason for refusal in yields] == ["inflight_full"] * 2


def test_a_client_does_not_wait_for_a_hint_that_is_longer_than_its_remaining_wait(
    client: Callable[..., JobClient], slept: list[float]
) -> None:
    with scripted_door(json_answer(503, FULL), json_answer(503, FULL)) as door:
        assert isinstance(client(door.url).submit({"prompt": "x"}, wait_s=3), YieldAnswer)
    assert slept == [1.84]


def test_a_refusal_that_advises_against_a_retry_is_not_retried(
    client: Callable[..., JobClient], slept: list[float]
) -> None:
    with scripted_door(json_answer(503, FULL, x_should_retry="false")) as door:
        refusal = client(door.url).submit({"prompt": "x"}, wait_s=60)
    assert isinstance(refusal, YieldAnswer)
    assert refusal.retry_hint_ms is None
    assert slept == []


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/penstock/v1"])
def test_an_address_that_ends_with_v1_is_refused_before_anything_is_sent(path: str) -> None:
    with pytest.raises(ConfigError, match=f"PENSTOCK_URL='http://gpu{path}' ends with /v1"):
        JobClient(f"http://gpu{path}")


def test_a_job_is_polled_at_the_door_s_interval_until_it_has_ended(
    client: Callable[..., JobClient], slept: list[float]
) -> None:
    with scripted_door(json_answer(200, RUNNING), json_answer(200, DONE)) as door:
        assert list(client(door.url).poll(QUEUED)) == [QUEUED, RUNNING, DONE]
    assert slept == [0.3, 0.2]
    assert {path for _, path, _, _ in door.requests} == {"/v1/jobs/j1"}


def test_polling_continues_after_a_restart_of_the_door_and_an_outage_of_the_store(
    client: Callable[..., JobClient],
) -> None:
    unavailable = FULL | {"reason": "store_unavailable", "retry_hint_ms": 1000}
    with scripted_door(
        close_connection, json_answer(503, unavailable), close_connection, json_answer(200, DONE)
    ) as door:
        assert list(client(door.url).poll(QUEUED)) == [QUEUED, DONE]


def test_polling_ends_if_the_store_stays_unavailable(client: Callable[..., JobClient], clock: ManualClock) -> None:
    unavailable = FULL | {"reason": "store_unavailable", "retry_hint_ms": 10_000}
    with (
        scripted_door(*[json_answer(503, unavailable)] * 8) as door,
        pytest.raises(DoorError, match="cannot answer now"),
    ):
        list(client(door.url).poll(QUEUED))
    assert clock.monotonic() >= 1060


def test_a_broken_stream_is_resumed_after_its_last_complete_event(client: Callable[..., JobClient]) -> None:
    first = 'id: 1-0\nevent: started\ndata: {"attempt": 1}\n\nid: 2-0\nevent: token\ndata: {"text": "on"}\n\nid: 3'
    second = (
        f': \n\nid: 3-0\nevent: token\ndata: {{"text": "ce"}}\n\nid: 4-0\nevent: ended\ndata: {json.dumps(DONE)}\n\n'
    )
    with scripted_door(
        event_stream(first), close_connection, json_answer(502, b"<html>"), event_stream(second)
    ) as door:
        events = list(client(door.url).follow("j1"))
    assert [event.kind for event in events] == ["started", "token", "token", "ended"]
    assert "".join(event.data["text"] for event in events if event.kind == "token") == "once"
    assert [headers.get("Last-Event-Id") for _, _, headers, _ in door.requests] == [None, "2-0", "2-0", "2-0"]


def test_a_stream_that_cannot_be_resumed_is_an_error(client: Callable[..., JobClient]) -> None:
    with scripted_door(*[close_connection] * 10) as door, pytest.raises(DoorError, match="no answer"):
        list(client(door.url).follow("j1"))
    assert 1 < len(door.requests) < 10


def test_an_error_event_in_a_stream_is_raised_with_its_message(client: Callable[..., JobClient]) -> None:
    stream = 'event: error\ndata: {"error": {"message": "no job", "code": "job_not_found"}}\n\n'
    with (
        scripted_door(event_stream(stream)) as door,
        pytest.raises(DoorError, match="ended the stream with an error: no job"),
    ):
        list(client(door.url).follow("j1"))


def test_following_an_unknown_job_fails_at_once(client: Callable[..., JobClient], slept: list[float]) -> None:
    error = {"error": {"message": "no job 'j1'", "code": "job_not_found"}}
    with scripted_door(json_answer(404, error)) as door, pytest.raises(DoorError, match="no job 'j1'"):
        list(client(door.url).follow("j1"))
    assert slept == []


def test_an_error_of_the_door_is_raised_with_its_message_code_and_field(client: Callable[..., JobClient]) -> None:
    error = {"error": {"message": "deadline_ms=0 is below 1", "code": "invalid_value", "param": "deadline_ms"}}
    with scripted_door(json_answer(422, error)) as door, pytest.raises(DoorError) as fault:
        client(door.url).submit({"prompt": "x"})
    assert (fault.value.status, fault.value.code) == (422, "invalid_value")
    assert "deadline_ms=0 is below 1 (deadline_ms)" in str(fault.value)


def test_an_html_page_of_a_proxy_is_an_error_and_not_a_yield(client: Callable[..., JobClient]) -> None:
    with (
        scripted_door(json_answer(503, b"<html>busy</html>")) as door,
        pytest.raises(DoorError, match=r"503.*<html>busy"),
    ):
        client(door.url).submit({"prompt": "x"})


@pytest.mark.parametrize("body", [b"<html>welcome</html>", {"hello": "world"}, [], b""])
def test_an_answer_that_no_door_gives_is_an_error_that_questions_the_url(
    client: Callable[..., JobClient], body: object
) -> None:
    with (
        scripted_door(json_answer(200, body)) as door,
        pytest.raises(DoorError, match="is PENSTOCK_URL a Penstock door"),
    ):
        client(door.url).get_job("j1")


def test_a_redirect_is_not_followed_so_that_the_key_is_not_sent_elsewhere(client: Callable[..., JobClient]) -> None:
    with (
        scripted_door(json_answer(200, DONE)) as elsewhere,
        scripted_door(json_answer(302, {}, Location=elsewhere.url)) as door,
    ):
        with pytest.raises(DoorError, match="302"):
            client(door.url, api_key="psk_1").get_job("j1")
        assert elsewhere.requests == []


def test_a_submit_to_an_address_where_nothing_listens_fails_at_once(
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
def test_an_invalid_url_is_quoted_in_the_error(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        JobClient(url)
    assert f"PENSTOCK_URL={url!r}" in str(refused.value)


@pytest.mark.parametrize("tenant", ["a b", "\u0451", "a\nb"])
def test_an_invalid_tenant_name_is_quoted_in_the_error(tenant: str) -> None:
    with pytest.raises(ConfigError, match="tenant=") as refused:
        JobClient("http://door", tenant=tenant)
    assert repr(tenant) in str(refused.value)


@pytest.mark.parametrize("key", ["psk_abc\u2026", "psk abc", "psk_abc\n"])
def test_an_invalid_api_key_is_reported_without_being_quoted(key: str) -> None:
    with pytest.raises(ConfigError, match="PENSTOCK_API_KEY") as refused:
        JobClient("http://door", api_key=key)
    assert "abc" not in str(refused.value)


def test_the_proxy_of_the_environment_is_not_used_for_loopback(
    client: Callable[..., JobClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with scripted_door(json_answer(200, DONE)) as door:
        assert client(door.url).get_job("j1") == DONE


def test_a_job_id_is_escaped_in_the_path(client: Callable[..., JobClient]) -> None:
    with scripted_door(json_answer(200, DONE)) as door:
        client(door.url).cancel("../../v1/queue?x")
    assert door.requests[0][:2] == ("DELETE", "/v1/jobs/..%2F..%2Fv1%2Fqueue%3Fx")


def test_events_are_read_with_comments_several_data_lines_and_any_line_end() -> None:
    lines = (
        ': hello\n\nid: 7-1\nevent: token\ndata: {\ndata: "text": "a"}\n\n: \nid:8-0\r\nevent:ended\r\ndata:{}\r\n\r\n'
    )
    assert list(read_events(iter(lines.splitlines(keepends=True)))) == [
        ServerEvent("7-1", "token", {"text": "a"}),
        ServerEvent("8-0", "ended", {}),
    ]

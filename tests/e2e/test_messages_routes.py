"""Anthropic's routes over a real store: the form of messages and events, errors and refusals."""

import json
from typing import Any

import pytest
from flask.testing import FlaskClient

from shared.accounts.tenants import Tenants
from shared.answer_parts import ARGUMENTS, CALL, END, REASONING
from shared.jobs.job import ClaimRef, Usage
from shared.jobs.outcomes import Outcome
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.answers import answer_in_two_attempts
from tests.support.door import a_door, serve, settle, worker, worker_that_restarts
from tests.support.messages import blocks_of, events_of, failed, text_of
from tests.support.scrapes import parse
from web.openapi import compatible_models

ROUTE = "/v1/messages"
HI: dict[str, Any] = {"role": "user", "content": "hi"}
BODY: dict[str, Any] = {"model": "m", "max_tokens": 20, "messages": [HI]}
TOOL: dict[str, Any] = {"name": "look", "input_schema": {"type": "object"}}
#: An answer that reasons, speaks and calls two tools, as it is stored.
PARTS = f'{REASONING}hm{END}I look.{CALL}look{ARGUMENTS}{{"at":"x"}}{END}{CALL}look{ARGUMENTS}{{}}{END}'


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store, facts={"calls_tools": "true"})
    return a_door(store, settings)


def answer_with(store: Store, *texts: str, **ending: Any) -> Any:
    """Return what a worker does with a job: append these texts, then settle."""

    def act(held: ClaimRef) -> None:
        for count, text in enumerate(texts, 1):
            store.append([(held, text, count)])
        settle(store, held, **({"text": "".join(texts)} | ending))

    return act


def test_a_message_is_answered_whole(client: FlaskClient, store: Store) -> None:
    with worker(store, answer_with(store, "Hello ", "you", finish_reason="stop")):
        response = client.post(ROUTE, json=BODY, headers={"anthropic-version": "2023-06-01", "anthropic-beta": "x"})
    assert response.status_code == 200, response.text
    body = response.get_json()
    compatible_models.Message.model_validate(body)
    assert body["content"] == [{"type": "text", "text": "Hello you"}]
    assert (body["stop_reason"], body["stop_sequence"], body["model"]) == ("end_turn", None, "m")
    assert body["usage"] == {
        "input_tokens": 10,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 20,
    }
    assert response.headers["x-deadline-ms"] == "120000"


@pytest.mark.parametrize(
    ("ending", "reason", "sequence"),
    [
        ({"finish_reason": "length"}, "max_tokens", None),
        ({"finish_reason": "stop"}, "end_turn", None),
        ({"finish_reason": "stop", "extra": {"stop_sequence": "END"}}, "stop_sequence", "END"),
    ],
)
def test_the_stop_reason_distinguishes_a_stop_sequence_from_the_models_own_end(
    client: FlaskClient, store: Store, ending: dict[str, Any], reason: str, sequence: str | None
) -> None:
    with worker(store, answer_with(store, "a", **ending)):
        body = client.post(ROUTE, json=BODY).get_json()
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)


@pytest.mark.parametrize(
    ("asked", "generated", "allowed", "reason"),
    [
        (32_000, 20, 63, "model_context_window_exceeded"),
        (64, 63, 63, "model_context_window_exceeded"),
        (63, 63, 63, "max_tokens"),
        (20, 20, 20, "max_tokens"),
    ],
)
def test_an_answer_may_fill_the_context_and_no_more(
    client: FlaskClient, store: Store, asked: int, generated: int, allowed: int, reason: str
) -> None:
    """The prompt has at least one token, so at most 63 of 64 are left."""
    serve(store, facts={"n_ctx": "64"})
    seen = []

    def act(held: ClaimRef) -> None:
        view = store.touch(held.id)
        assert view is not None
        seen.append(view.max_tokens)
        settle(store, held, text="a", finish_reason="length", usage=Usage(1, 0, generated, 5, 100, 7))

    with worker(store, act):
        body = client.post(ROUTE, json=BODY | {"max_tokens": asked}).get_json()
    assert body["stop_reason"] == reason
    assert seen == [allowed]


def test_fields_without_effect_are_named_in_a_header_and_counted(client: FlaskClient, store: Store) -> None:
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    more = {"context_management": edits, "metadata": {"user_id": "u"}, "tools": [TOOL | {"cache_control": {}}]}
    with worker(store, answer_with(store, "a")):
        response = client.post(ROUTE, json=BODY | more)
    assert response.status_code == 200, response.text
    assert response.headers["x-penstock-ignored"] == "context_management, metadata, cache_control"
    counted = client.post(f"{ROUTE}/count_tokens", json={"messages": [HI], "metadata": {}})
    assert counted.headers["x-penstock-ignored"] == "metadata"
    with worker(store, answer_with(store, "a")):
        assert "x-penstock-ignored" not in client.post(ROUTE, json=BODY).headers
    metrics = parse(client.get("/metrics").text).values
    counts = {
        dict(labels)["route"]: value
        for (name, labels), value in metrics.items()
        if name == "penstock_http_ignored_fields_total" and ("field", "metadata") in labels
    }
    assert counts == {ROUTE: 1, f"{ROUTE}/count_tokens": 1}


def test_a_thread_begins_but_cannot_be_continued(client: FlaskClient, store: Store) -> None:
    with worker(store, answer_with(store, "a")):
        begun = client.post(ROUTE, json=BODY | {"thread": {"type": "create"}})
    assert (begun.status_code, begun.headers["x-penstock-ignored"]) == (200, "thread")
    thread = {"type": "continue", "previous_message_id": begun.get_json()["id"]}
    body = failed(client.post(ROUTE, json=BODY | {"thread": thread}), 404, "not_found_error", "thread_not_found")
    # Anthropic's packages then send the whole conversation.
    assert body["error"]["details"] == {"error_code": "thread_not_found"}


def test_a_message_is_streamed_as_events(client: FlaskClient, store: Store) -> None:
    with worker(store, answer_with(store, "a", "b\n\n", "ž", finish_reason="stop")):
        response = client.post(ROUTE, json=BODY | {"stream": True})
        events = events_of(response)
    assert response.headers["Content-Type"].startswith("text/event-stream")
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert text_of(events) == "ab\n\nž"
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert (events[-2]["usage"]["input_tokens"], events[-2]["usage"]["output_tokens"]) == (10, 20)


def test_reasoning_and_calls_of_tools_are_blocks_of_their_own(client: FlaskClient, store: Store) -> None:
    with worker(store, answer_with(store, PARTS, finish_reason="stop")):
        body = client.post(ROUTE, json=BODY | {"tools": [TOOL]}).get_json()
    job = body["id"].removeprefix("msg_")
    assert body["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": f"toolu_{job}_0", "name": "look", "input": {"at": "x"}},
        {"type": "tool_use", "id": f"toolu_{job}_1", "name": "look", "input": {}},
    ]
    assert body["stop_reason"] == "tool_use"


@pytest.mark.parametrize("pieces", [[PARTS], list(PARTS), [PARTS[:9], PARTS[9:31], PARTS[31:]]])
def test_streamed_blocks_open_grow_and_close_in_order(client: FlaskClient, store: Store, pieces: list[str]) -> None:
    with worker(store, answer_with(store, *pieces, finish_reason="stop")):
        events = events_of(client.post(ROUTE, json=BODY | {"tools": [TOOL], "stream": True}))
    assert blocks_of(events) == [
        ["thinking", "hm"],
        ["text", "I look."],
        ["tool_use", '{"at":"x"}'],
        ["tool_use", "{}"],
    ]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_call_that_was_cut_has_what_is_complete_of_its_input(client: FlaskClient, store: Store) -> None:
    text = f'{CALL}look{ARGUMENTS}{{"at":"x","n":[1,2'
    with worker(store, answer_with(store, text, finish_reason="length")):
        body = client.post(ROUTE, json=BODY | {"tools": [TOOL]}).get_json()
    assert body["content"][0]["input"] == {"at": "x", "n": [1, 2]}
    assert body["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
@pytest.mark.parametrize("streams", [False, True])
def test_an_upstreams_reasoning_and_calls_are_blocks_too(
    store: Store, settings: Settings, streams: bool, reason: str
) -> None:
    serve(store, facts={"forwards": "true"})
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at":"x"}'}}
    extra = {"upstream": {"reasoning_content": "hm", "tool_calls": [call]}}
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    body = BODY | {"messages": [{"role": "user", "content": [image]}], "tools": [TOOL], "stream": streams}
    with worker(store, answer_with(store, "I look.", finish_reason=reason, extra=extra)):
        response = a_door(store, settings).post(ROUTE, json=body)
        text = response.text
    if streams:
        events = events_of(response)
        assert blocks_of(events) == [["text", "I look."], ["thinking", "hm"], ["tool_use", '{"at":"x"}']]
        assert events[-2]["delta"]["stop_reason"] == "tool_use"
    else:
        assert json.loads(text)["stop_reason"] == "tool_use"
        assert [block["type"] for block in json.loads(text)["content"]] == ["thinking", "text", "tool_use"]
        assert json.loads(text)["content"][2]["input"] == {"at": "x"}


def test_a_stream_continues_without_a_gap_or_a_repeat_after_a_lost_worker(client: FlaskClient, store: Store) -> None:
    with worker(store, lambda held: answer_in_two_attempts(store, held, ["Hello ", "you"], [" two"])):
        events = events_of(client.post(ROUTE, json=BODY | {"stream": True}))
    assert text_of(events) == "Hello you two"
    assert events[-1]["type"] == "message_stop"


def test_a_second_attempt_with_a_different_text_ends_the_stream_with_an_error(
    client: FlaskClient, store: Store
) -> None:
    with worker_that_restarts(store) as watched:
        events = events_of(watched(client.post(ROUTE, json=BODY | {"stream": True})))
    assert (events[-1]["type"], events[-1]["error"]["type"]) == ("error", "api_error")
    assert events[-1]["error"]["code"] == "job_failed"
    assert store.jobs("default").jobs[0].cancel_requested


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("ending", "status", "kind", "code"),
    [
        ({"outcome": Outcome.EXPIRED, "code": "deadline_exceeded"}, 504, "timeout_error", "deadline_exceeded"),
        ({"outcome": Outcome.FAILED, "code": "engine_error"}, 500, "api_error", "job_failed"),
        ({"outcome": Outcome.FAILED, "code": "invalid_value"}, 400, "invalid_request_error", "invalid_value"),
        ({"outcome": Outcome.CANCELED, "code": "canceled"}, 409, "api_error", "job_canceled"),
    ],
)
def test_an_end_without_an_answer_is_an_error_that_must_not_be_retried(
    client: FlaskClient, store: Store, ending: dict[str, Any], status: int, kind: str, code: str, stream: bool
) -> None:
    with worker(store, answer_with(store, **ending)):
        response = client.post(ROUTE, json=BODY | {"stream": stream})
    failed(response, status, kind, code)
    assert response.headers["x-should-retry"] == "false"


def test_a_refusal_has_its_fields_and_hints_beside_anthropics(client: FlaskClient, store: Store) -> None:
    store.client.incrby("penstock:clock", 6_000)
    for stream in (False, True):
        response = client.post(ROUTE, json=BODY | {"stream": stream})
        body = failed(response, 503, "overloaded_error", "no_worker")
        assert (body["status"], body["reason"]) == ("yield", "no_worker")
        assert response.headers["retry-after-ms"] == str(body["retry_hint_ms"])
        assert int(response.headers["Retry-After"]) >= 1


def test_a_tenant_that_exceeds_its_rate_gets_a_rate_limit_error(client: FlaskClient, store: Store) -> None:
    Tenants(store.client).set("often", TenantPolicy(rpm=1))
    headers = {"X-Tenant": "often"}
    with worker(store, answer_with(store, "a")):
        assert client.post(ROUTE, json=BODY, headers=headers).status_code == 200
    response = client.post(ROUTE, json=BODY, headers=headers)
    failed(response, 429, "rate_limit_error", "rate_limited")
    assert "retry-after-ms" in response.headers


@pytest.mark.parametrize(
    ("body", "status", "kind", "code"),
    [
        (BODY | {"model": "nope"}, 404, "not_found_error", "model_not_found"),
        ({"messages": [HI]}, 400, "invalid_request_error", "invalid_value"),
        (BODY | {"messages": [{"role": "robot", "content": "x"}]}, 400, "invalid_request_error", "invalid_value"),
        (BODY | {"container": "c"}, 400, "invalid_request_error", "unsupported_parameter"),
        (BODY | {"messages": [HI | {"content": "a" * 200}]}, 413, "request_too_large", "request_too_large"),
        ([], 400, "invalid_request_error", "invalid_value"),
    ],
)
@pytest.mark.parametrize("path", [ROUTE, f"{ROUTE}/count_tokens"])
def test_an_error_has_anthropics_shape(
    store: Store, settings: Settings, path: str, body: Any, status: int, kind: str, code: str
) -> None:
    serve(store)
    if "count" in path and isinstance(body, dict):
        body = {name: given for name, given in body.items() if name != "max_tokens"}
        body |= {} if "model" in body else {"messages": "hi"}
    failed(a_door(store, settings, max_body_bytes=180).post(path, json=body), status, kind, code)


def test_a_body_that_is_no_json_and_an_unknown_host_have_anthropics_shape(client: FlaskClient) -> None:
    broken = client.post(ROUTE, data=b"{", content_type="application/json")
    failed(broken, 400, "invalid_request_error", "invalid_json")
    failed(client.post(ROUTE, json=BODY, headers={"Host": "elsewhere"}), 421, "invalid_request_error", "unknown_host")


def test_count_tokens_is_the_estimate_of_admission_and_creates_no_job(client: FlaskClient, store: Store) -> None:
    prompt: dict[str, Any] = {"model": "m", "system": "be brief " * 40, "messages": [HI], "tools": [TOOL]}
    response = client.post(f"{ROUTE}/count_tokens", json=prompt)
    compatible_models.TokenCount.model_validate(response.get_json())
    assert not store.jobs("default").jobs
    with worker(store, answer_with(store, "a")):
        client.post(ROUTE, json=prompt | {"max_tokens": 9})
    assert response.get_json()["input_tokens"] == store.jobs("default").jobs[0].prompt_tokens > 100

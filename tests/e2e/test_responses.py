"""`/v1/responses` over a real store: the form of each end, and streams that can be resumed after any event."""

import json
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from shared.jobs.job import ClaimRef
from shared.jobs.outcomes import Outcome
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.answers import answer_in_two_attempts
from tests.support.builders import heartbeat
from tests.support.door import (
    a_door,
    admitted_job,
    fault,
    post_response,
    refused,
    run_next,
    serve,
    settle,
    submit,
    worker,
    worker_that_restarts,
)
from web.openapi import compatible_models

PATH = "/v1/responses"


@pytest.fixture
def client(store: Store, settings: Settings) -> FlaskClient:
    serve(store)
    return a_door(store, settings)


def response_of(answer: TestResponse) -> dict[str, Any]:
    """Validate the response in an answer and return it."""
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.get_json()
    compatible_models.Response.model_validate(body)
    return body


def answer_with(store: Store, held: ClaimRef, *texts: str, **ending: Any) -> None:
    """Append these texts to a claimed job, then settle it."""
    for count, text in enumerate(texts, 1):
        store.append([(held, text, count)])
    settle(store, held, **({"text": "".join(texts), "finish_reason": "stop"} | ending))


def events_in(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream; the name of each frame must be the event's type."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in block.splitlines() if not line.startswith(":"))
        if fields:
            data = json.loads(fields["data"])
            assert fields["event"] == data["type"]
            found.append(data)
    numbers = [event["sequence_number"] for event in found]
    assert numbers == sorted(set(numbers))
    return found


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event.get("delta", "") for event in events)


WHOLE = ["created", "queued", "in_progress", "output_item.added", "content_part.added"]
CLOSE = ["output_text.done", "content_part.done", "output_item.done", "completed"]


def test_an_input_is_answered_whole(client: FlaskClient, store: Store) -> None:
    with worker(store, lambda held: answer_with(store, held, "Hello ", "you")):
        body = response_of(post_response(client, metadata={"k": "v"}, temperature=0.5, instructions="be kind"))
    assert (body["status"], body["output"][0]["content"][0]["text"]) == ("completed", "Hello you")
    assert (body["metadata"], body["temperature"], body["max_output_tokens"]) == ({"k": "v"}, 0.5, 20)
    assert body["usage"]["total_tokens"] == 30
    assert body["queue"]["waited"]["requeued_ms"] == 0
    assert response_of(client.get(f"{PATH}/{body['id']}")) == body


@pytest.mark.parametrize(
    ("finish_reason", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_an_answer_that_was_cut_is_incomplete(
    client: FlaskClient, store: Store, finish_reason: str, reason: str
) -> None:
    with worker(store, lambda held: answer_with(store, held, "Hel", finish_reason=finish_reason)):
        body = response_of(post_response(client))
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert body["output"][0]["status"] == "incomplete"


def test_the_engine_gets_the_instructions_before_the_messages_of_the_input(client: FlaskClient, store: Store) -> None:
    earlier_answer = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "yes?", "annotations": []}],
    }
    user_message = {
        "role": "user",
        "content": [{"type": "input_text", "text": "go "}, {"type": "input_text", "text": "on"}],
    }
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    post_response(
        client, input=[earlier_answer, user_message], instructions="be kind", background=True, text={"format": schema}
    )
    job = store.claim("w1", "claim-1", "m", room=1, cells_free=4_096)[0]
    assert job.payload["messages"] == [
        {"role": "system", "content": "be kind"},
        {"role": "assistant", "content": "yes?"},
        {"role": "user", "content": "go on"},
    ]
    assert job.payload["response_format"]["json_schema"] == {"name": "n", "schema": {"type": "object"}}
    assert (job.payload["max_tokens"], job.payload["temperature"]) == (20, 1.0)


def test_a_background_response_is_returned_at_once_and_can_be_read_until_its_end(
    client: FlaskClient, store: Store
) -> None:
    body = response_of(post_response(client, background=True))
    assert (body["status"], body["background"], body["queue"]["position"]) == ("queued", True, 1)
    held = run_next(store)
    answer = client.get(f"{PATH}/{body['id']}")
    assert (response_of(answer)["status"], answer.headers["retry-after-ms"]) == ("in_progress", "250")
    answer_with(store, held, "well")
    assert response_of(client.get(f"{PATH}/{body['id']}"))["status"] == "completed"


ENDS: list[tuple[dict[str, Any], int, str, str]] = [
    ({"outcome": Outcome.EXPIRED, "code": "deadline_exceeded"}, 504, "deadline_exceeded", "server_error"),
    ({"outcome": Outcome.FAILED, "code": "engine_error"}, 500, "job_failed", "server_error"),
    ({"outcome": Outcome.FAILED, "code": "invalid_value"}, 400, "invalid_value", "invalid_prompt"),
    ({"outcome": Outcome.FAILED, "code": "context_length_exceeded"}, 400, "context_length_exceeded", "invalid_prompt"),
]


@pytest.mark.parametrize(("ending", "status", "code", "kind"), ENDS)
def test_an_end_without_an_answer_is_an_error_in_the_foreground_and_a_status_in_the_background(
    client: FlaskClient, store: Store, ending: dict[str, Any], status: int, code: str, kind: str
) -> None:
    for stream in (False, True):
        with worker(store, lambda held: answer_with(store, held, **ending)):
            fault(post_response(client, stream=stream), status, code)
    body = response_of(post_response(client, background=True))
    answer_with(store, run_next(store), **ending)
    failed = response_of(client.get(f"{PATH}/{body['id']}"))
    assert (failed["status"], failed["error"]["code"], failed["error"]["type"]) == ("failed", kind, ending["code"])


def test_the_events_of_a_stream_come_in_openais_order(client: FlaskClient, store: Store) -> None:
    with worker(store, lambda held: answer_with(store, held, "a", "b\n\n", "ž")):
        answer = post_response(client, stream=True)
        events = events_in(answer.text)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert kinds(events) == [*WHOLE, *["output_text.delta"] * 3, *CLOSE]
    assert text_of(events) == "ab\n\nž" == events[-1]["response"]["output"][0]["content"][0]["text"]
    for event in (events[0], events[-1]):
        compatible_models.Response.model_validate(event["response"])


def test_a_stream_can_be_resumed_after_each_of_its_events(client: FlaskClient, store: Store) -> None:
    body = response_of(post_response(client, background=True))
    answer_with(store, run_next(store), "one ", "two ", "three")
    url = f"{PATH}/{body['id']}?stream=true"
    whole = events_in(client.get(url).text)
    assert kinds(whole) == [*WHOLE, *["output_text.delta"] * 3, *CLOSE]
    for index, event in enumerate(whole):
        rest = events_in(client.get(f"{url}&starting_after={event['sequence_number']}").text)
        assert rest == whole[index + 1 :]


def test_a_stream_can_be_resumed_when_only_the_result_is_left(client: FlaskClient, store: Store) -> None:
    body = response_of(post_response(client, background=True))
    answer_with(store, run_next(store), "one ", "two ", "three")
    url = f"{PATH}/{body['id']}?stream=true"
    whole = events_in(client.get(url).text)
    store.client.delete(keys.events(body["id"].removeprefix("resp_")))  # as the store does a minute after the end
    rest = events_in(client.get(f"{url}&starting_after={whole[5]['sequence_number']}").text)
    assert (text_of(rest), kinds(rest)) == ("two three", ["output_text.delta", *CLOSE])
    assert rest[-1] == whole[-1]


def test_a_reader_of_a_background_response_may_disconnect_before_its_end(client: FlaskClient, store: Store) -> None:
    answer = client.post(PATH, json={"input": "hi", "background": True, "stream": True}, buffered=False)
    frames = answer.iter_encoded()
    assert events_in(next(frames).decode())[0]["response"]["status"] == "queued"
    held = run_next(store)
    answer.close()
    answer_with(store, held, "well")
    assert response_of(client.get(f"{PATH}/resp_{held.id}"))["status"] == "completed"


def test_a_lost_worker_leaves_no_trace_in_a_stream(client: FlaskClient, store: Store) -> None:
    def lose_then_answer(held: ClaimRef) -> None:
        store.append([(held, "Hello ", 1)])
        store.release("w1", [held])
        heartbeat(store)
        answer_with(store, run_next(store), "Hel", "lo you")

    with worker(store, lose_then_answer):
        events = events_in(post_response(client, stream=True).text)
    assert text_of(events) == "Hello you"
    assert kinds(events).count("in_progress") == 1


def test_a_response_continues_after_the_tokens_of_a_lost_worker(client: FlaskClient, store: Store) -> None:
    with worker(store, lambda held: answer_in_two_attempts(store, held, ["Hel", "lo"], [" you"])):
        events = events_in(post_response(client, stream=True).text)
    assert text_of(events) == "Hello you"
    assert (kinds(events).count("in_progress"), kinds(events)[-1]) == (1, "completed")


def test_a_second_attempt_with_a_different_text_ends_the_stream_and_its_job(client: FlaskClient, store: Store) -> None:
    with worker_that_restarts(store) as watched:
        events = events_in(watched(post_response(client, stream=True)).text)
    assert (events[-1]["type"], events[-1]["error"]["code"]) == ("error", "job_failed")
    assert store.jobs("default").jobs[0].cancel_requested


def test_a_queued_or_running_response_is_canceled_at_once_and_stays_canceled(client: FlaskClient, store: Store) -> None:
    first = response_of(post_response(client, background=True))
    assert response_of(client.post(f"{PATH}/{first['id']}/cancel"))["status"] == "cancelled"
    second = response_of(post_response(client, background=True))
    held = run_next(store)
    assert response_of(client.post(f"{PATH}/{second['id']}/cancel"))["status"] == "cancelled"
    answer_with(store, held, "too late")
    ended = response_of(client.get(f"{PATH}/{second['id']}"))
    assert (ended["status"], ended["error"]) == ("cancelled", None)
    assert kinds(events_in(client.get(f"{PATH}/{first['id']}?stream=true").text)) == ["created", "queued", "failed"]


def test_a_superseded_response_is_canceled_and_says_why(client: FlaskClient) -> None:
    older = response_of(post_response(client, background=True, supersede_key="tab"))
    post_response(client, background=True, supersede_key="tab")
    body = response_of(client.get(f"{PATH}/{older['id']}"))
    assert (body["status"], body["error"]["type"]) == ("cancelled", "superseded")


def test_an_id_that_is_no_response_of_this_tenant_is_404(client: FlaskClient) -> None:
    body = response_of(post_response(client, background=True))
    job = admitted_job(submit(client))
    for name in ("resp_x", body["id"].removeprefix("resp_"), f"resp_{job['id']}"):
        for answer in (client.get(f"{PATH}/{name}"), client.post(f"{PATH}/{name}/cancel")):
            fault(answer, 404, "job_not_found")
    fault(client.get(f"{PATH}/{body['id']}", headers={"X-Tenant": "green"}), 404, "job_not_found")


def test_a_refusal_has_the_same_body_as_on_other_routes(client: FlaskClient, store: Store) -> None:
    store.client.incrby("penstock:clock", 6_000)
    for request_fields in ({}, {"stream": True}, {"background": True}):
        refused(post_response(client, **request_fields), "no_worker")

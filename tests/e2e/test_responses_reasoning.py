"""Reasoning on `/v1/responses`: an item before the message, plain and streamed, as the `openai` package reads it."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from flask.testing import FlaskClient
from openai import OpenAI
from openai.types.responses import ResponseReasoningItem

from shared.answer_parts import ARGUMENTS, CALL, END, REASONING
from shared.jobs.job import ClaimRef
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.door import a_door, post_response, run_next, serve, settle, worker

THOUGHT = f"{REASONING}Two and two{END}"
CALLED = f'{CALL}add{ARGUMENTS}{{"a": 2}}{END}'
TOOLS: list[Any] = [{"type": "function", "name": "add", "parameters": {"type": "object"}}]
ASKED: dict[str, Any] = {"model": "m", "input": "hi"}


@pytest.fixture
def door(store: Store, settings: Settings) -> FlaskClient:
    serve(store, facts={"calls_tools": "true"})
    return a_door(store, settings)


@pytest.fixture
def client(door: FlaskClient) -> Iterator[OpenAI]:
    with httpx.Client(transport=httpx.WSGITransport(app=door.application)) as http:
        yield OpenAI(base_url="http://localhost/v1", api_key="none", http_client=http, max_retries=0)


def answer_with(store: Store, held: ClaimRef, *texts: str, finish_reason: str = "stop") -> None:
    for count, text in enumerate(texts, 1):
        store.append([(held, text, count)])
    settle(store, held, text="".join(texts), finish_reason=finish_reason, extra={"reasoning_tokens": 3})


def read(items: list[Any]) -> list[tuple[str, str, str]]:
    """Return the type, the status and the text of each item of an output."""
    found = []
    for item in items:
        if isinstance(item, ResponseReasoningItem):
            assert item.summary == []
        text = item.arguments if item.type == "function_call" else "".join(part.text for part in item.content or ())
        found.append((item.type, item.status, text))
    return found


#: The texts of an answer, why it ended, and the items of the output.
ANSWERS: dict[str, tuple[list[str], str, list[tuple[str, str, str]]]] = {
    "message": (
        [THOUGHT[:5], THOUGHT[5:] + "fou", "r"],
        "stop",
        [("reasoning", "completed", "Two and two"), ("message", "completed", "four")],
    ),
    "message cut": (
        [THOUGHT, "fou"],
        "length",
        [("reasoning", "completed", "Two and two"), ("message", "incomplete", "fou")],
    ),
    "reasoning cut": ([THOUGHT[:4], THOUGHT[4:]], "length", [("reasoning", "incomplete", "Two and two")]),
    "nothing but reasoning": ([THOUGHT], "stop", [("reasoning", "completed", "Two and two")]),
    "call": (
        [THOUGHT, CALLED],
        "stop",
        [("reasoning", "completed", "Two and two"), ("function_call", "completed", '{"a": 2}')],
    ),
    "no reasoning": ([REASONING + END, "four"], "stop", [("message", "completed", "four")]),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("texts", "reason", "items"), ANSWERS.values(), ids=ANSWERS.keys())
def test_reasoning_is_an_item_before_the_message_and_the_calls(
    client: OpenAI, store: Store, texts: list[str], reason: str, items: list[tuple[str, str, str]], stream: bool
) -> None:
    more: dict[str, Any] = {"tools": TOOLS} if CALLED in texts else {}
    with worker(store, lambda held: answer_with(store, held, *texts, finish_reason=reason)):
        if stream:
            with client.responses.stream(**ASKED, **more) as events:
                received = list(events)
            response = received[-1].response
            deltas = [event.delta for event in received if event.type == "response.reasoning_text.delta"]
            assert "".join(deltas) == "".join(text for kind, _, text in items if kind == "reasoning")
            done = [event.item for event in received if event.type == "response.output_item.done"]
            assert read(done) == items
        else:
            response = client.responses.create(**ASKED, **more)
    assert read(response.output) == items
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == 3


def test_a_stream_with_reasoning_can_be_resumed_after_each_of_its_events(door: FlaskClient, store: Store) -> None:
    body = post_response(door, background=True).get_json()
    answer_with(store, run_next(store), THOUGHT[:4], THOUGHT[4:], "fou", "r")
    url = f"/v1/responses/{body['id']}?stream=true"

    def events(address: str) -> list[dict[str, Any]]:
        frames = door.get(address).text.split("\n\n")[:-1]
        return [json.loads(frame.partition("data: ")[2]) for frame in frames]

    whole = events(url)
    kinds = [event["type"].removeprefix("response.") for event in whole]
    item = ["output_item.added", "content_part.added"]
    assert kinds == [
        *["created", "queued", "in_progress", *item, *["reasoning_text.delta"] * 2],
        *["reasoning_text.done", "content_part.done", "output_item.done"],
        *[*item, *["output_text.delta"] * 2, "output_text.done", "content_part.done", "output_item.done", "completed"],
    ]
    for index, event in enumerate(whole):
        assert events(f"{url}&starting_after={event['sequence_number']}") == whole[index + 1 :]


def test_the_effort_and_earlier_reasoning_are_told_to_the_model(door: FlaskClient, store: Store) -> None:
    text = [{"type": "reasoning_text", "text": "Add"}, {"type": "reasoning_text", "text": " them."}]
    earlier = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None, "status": "completed"}
    call = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "4"}
    asked = {"reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"]}
    items = [{"role": "user", "content": "hi"}, earlier | {"content": text}, call, output]
    body = post_response(door, background=True, input=items, **asked).get_json()
    assert body["reasoning"] == {"effort": "low", "summary": None}
    (job,) = store.claim("w1", "claim-1", "m", room=1, cells_free=4_096)
    assert (job.payload["reasoning_effort"], job.payload["parts"]) == ("low", True)
    user, assistant, tool = job.payload["messages"]
    assert [user["role"], assistant["role"], tool["role"]] == ["user", "assistant", "tool"]
    assert assistant["reasoning_content"] == "Add them."


def test_a_continued_response_repeats_its_reasoning_until_the_user_speaks(door: FlaskClient, store: Store) -> None:
    def answered(**fields: Any) -> tuple[str, list[dict[str, Any]]]:
        response_id = post_response(door, background=True, tools=TOOLS, **fields).get_json()["id"]
        (job,) = store.claim("w1", f"claim-{response_id}", "m", room=1, cells_free=4_096)
        settle(store, job.held, text=THOUGHT + CALLED)
        return response_id, job.payload["messages"]

    def thoughts(messages: list[dict[str, Any]]) -> list[str]:
        return [message["reasoning_content"] for message in messages if "reasoning_content" in message]

    first, asked = answered(input="hi")
    assert thoughts(asked) == []
    output = {"type": "function_call_output", "call_id": "c", "output": "4"}
    second, told = answered(input=[output], previous_response_id=first)
    assert thoughts(told) == ["Two and two"]
    third, told = answered(input=[output], previous_response_id=second)
    assert thoughts(told) == ["Two and two"] * 2
    _, told = answered(input="And now?", previous_response_id=third)
    assert thoughts(told) == []
    assert [message["role"] for message in told[-3:]] == ["tool", "assistant", "user"]

"""Tests of the door in front of a model that another server serves, with OpenAI's package as the client."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import openai
import pytest

from tests.support.processes import in_time, wait_for
from tests.support.served import Served, sim_served, upstream_door
from tests.support.upstream_server import UpstreamServer

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 12}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def server() -> Iterator[UpstreamServer]:
    with UpstreamServer() as server:
        server.model_fields = {"max_model_len": 4096}
        yield server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, server: UpstreamServer) -> Iterator[Served]:
    # The door knows nothing of the workers' engine but what their heartbeats say.
    door = {"PENSTOCK_ENGINE": "llama"}
    with upstream_door(tmp_path_factory.mktemp("upstream"), server.url, door=door, PENSTOCK_LEASE_MS="2500") as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


def test_a_request_is_passed_on_whole_and_its_tokens_are_the_upstreams(
    client: openai.OpenAI, server: UpstreamServer
) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages: list[Any] = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "what is it?"}, picture]},
    ]
    more: dict[str, Any] = {"tools": TOOLS, "reasoning_effort": "low", "seed": 7}
    answer = client.chat.completions.create(
        model="m", messages=messages, max_completion_tokens=9, **more, extra_body={"guided": [1], "deadline_ms": 20_000}
    )
    assert answer.choices[0].message.content == "w0 w1 w2 "
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (21, 3)
    sent = {"model": "m", "stream": True, "stream_options": {"include_usage": True}, "max_completion_tokens": 9}
    assert server.bodies[-1] == more | sent | {"messages": messages, "guided": [1]}
    assert server.headers[-1]["X-Request-Id"] == answer._request_id


@pytest.mark.parametrize("streams", [False, True])
def test_calls_of_tools_and_reasoning_reach_the_client(
    client: openai.OpenAI, server: UpstreamServer, streams: bool
) -> None:
    server.will("tools")
    arguments = CHAT | {"tools": TOOLS, "tool_choice": "required"}
    if streams:
        with client.chat.completions.stream(**arguments) as events:
            answer: Any = events.get_final_completion()
    else:
        answer = client.chat.completions.create(**arguments)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls] == [
        ("call_0", "weather", '{"a":1}'),
        ("call_1", "time", '{"a":1}'),
    ]
    assert message.reasoning_content == "I must look."


def test_reasoning_and_calls_reach_a_stream_as_they_come(client: openai.OpenAI, server: UpstreamServer) -> None:
    server.will("tools")
    chunks = client.chat.completions.create(**CHAT | {"tools": TOOLS}, stream=True)
    deltas = [chunk.choices[0].delta.model_dump(exclude_none=True) for chunk in chunks]
    # The pieces may be joined on their way, but only those of one part.
    kinds = [next(iter(delta)) for delta in deltas[1:] if delta]
    assert kinds == sorted(kinds)
    assert all(len(delta) == 1 for delta in deltas[1:] if delta)
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "I must look."
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    begun = {"type": "function", "function": {"name": "weather", "arguments": ""}}
    assert calls[0] == {"index": 0, "id": "call_0"} | begun
    assert "".join(call["function"]["arguments"] for call in calls if call["index"] == 0) == '{"a":1}'


@pytest.mark.parametrize("streams", [False, True])
def test_what_a_server_sends_beside_the_answer_is_passed_on(
    client: openai.OpenAI, server: UpstreamServer, streams: bool
) -> None:
    field = "delta" if streams else "message"
    first = {"index": 0, field: {"reasoning": "hm", "provider": "x"}, "token_ids": [7]}
    last = {"index": 0, field: {"content": "a"}, "token_ids": [8], "stop_reason": "END", "finish_reason": "stop"}
    server.will([first, last] if streams else first | last | {field: first[field] | last[field]})
    if streams:
        chunks = [chunk.model_dump() for chunk in client.chat.completions.create(**CHAT, stream=True)]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        choice = chunks[-1]["choices"][0]
        assert [delta["reasoning"] for delta in deltas if "reasoning" in delta] == ["hm"]
        assert [delta["provider"] for delta in deltas if "provider" in delta] == ["x"]
    else:
        choice = client.chat.completions.create(**CHAT).choices[0].model_dump()
        assert (choice["message"]["reasoning"], choice["message"]["provider"]) == ("hm", "x")
    assert (choice["token_ids"], choice["stop_reason"]) == ([7, 8] if streams else [8], "END")


def test_logprobs_of_the_prompt_are_asked_for_without_a_stream(client: openai.OpenAI, server: UpstreamServer) -> None:
    server.will({"index": 0, "message": {"content": "a"}, "prompt_logprobs": [None, {"5": {"logprob": -1.0}}]})
    answer = client.chat.completions.create(**CHAT, extra_body={"prompt_logprobs": 1})
    sent = {"model": "m", "messages": CHAT["messages"], "max_tokens": 12, "prompt_logprobs": 1}
    assert server.bodies[-1] == sent
    assert answer.choices[0].model_dump()["prompt_logprobs"] == [None, {"5": {"logprob": -1.0}}]


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_stream_has_usage_only_if_the_client_asked_for_it(client: openai.OpenAI, include_usage: bool) -> None:
    options: Any = {"stream_options": {"include_usage": True}} if include_usage else {}
    chunks = list(client.chat.completions.create(**CHAT, stream=True, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "w0 w1 w2 "
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == ([3] if include_usage else [])


def test_a_completion_is_passed_on(client: openai.OpenAI, server: UpstreamServer) -> None:
    answer = client.completions.create(model="m", prompt="once upon", echo=True)
    assert answer.choices[0].text == "w0 w1 w2 "
    sent = {"model": "m", "prompt": "once upon", "echo": True, "stream": True}
    assert server.bodies[-1] == sent | {"stream_options": {"include_usage": True}}


def test_a_request_without_a_length_is_sent_without_one_and_ends_at_a_bound(
    client: openai.OpenAI, served: Served, server: UpstreamServer
) -> None:
    chat = {"model": "m", "messages": CHAT["messages"]}
    server.words = 400
    try:
        answer = client.chat.completions.create(**chat)
        job = served.http.post("/v1/jobs", json={"model": "m", "prompt": "hello there", "temperature": 0.8}).json()
        (view,) = served.stage.ended(job["id"])
    finally:
        server.words = 3
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 400
    assert view.usage is not None
    assert view.usage.completion_tokens == 400
    own = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    assert server.bodies[-2] == chat | own
    assert server.bodies[-1].keys() == own.keys() | {"prompt", "temperature"}


@pytest.mark.parametrize("behaviour", ["answer", "numbers"])
def test_embeddings_are_those_of_the_upstream_in_the_order_of_the_inputs(
    client: openai.OpenAI, server: UpstreamServer, behaviour: str
) -> None:
    server.will(behaviour)
    answer = client.embeddings.create(model="m", input=["one", "two"], dimensions=2)
    assert [item.embedding for item in answer.data] == [[0.0, 0.5], [1.0, 0.5]]
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (11, 11)
    expected = {"model": "m", "input": ["one", "two"], "encoding_format": "base64", "dimensions": 2}
    assert server.bodies[-1] == expected


def test_a_model_whose_upstream_makes_no_embeddings_is_404(client: openai.OpenAI, server: UpstreamServer) -> None:
    server.will("no embeddings")
    with pytest.raises(openai.NotFoundError, match="makes no embeddings") as caught:
        client.embeddings.create(model="m", input="one")
    assert (caught.value.code, caught.value.param) == ("embeddings_unsupported", "model")


def test_models_have_the_longest_job_of_the_upstream(client: openai.OpenAI) -> None:
    lengths = {model.id: model.model_dump().get("max_model_len") for model in client.models.list()}
    assert lengths["m"] == 4096


def test_a_response_runs_on_the_upstream(client: openai.OpenAI) -> None:
    assert client.responses.create(model="m", input="hello there").output_text == "w0 w1 w2 "


def test_a_request_that_the_upstream_rejects_is_400_with_its_message(
    client: openai.OpenAI, server: UpstreamServer
) -> None:
    server.will("reject")
    with pytest.raises(openai.BadRequestError, match="no such tool") as caught:
        client.chat.completions.create(**CHAT)
    assert (caught.value.code, caught.value.param) == ("upstream_rejected", "tools")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"n": 17}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"num_return_sequences": 2}, "num_return_sequences"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"deadline_ms": "soon"}, "deadline_ms"),
    ],
)
def test_what_admission_needs_is_validated_at_the_door(
    served: Served, server: UpstreamServer, body: dict[str, Any], param: str
) -> None:
    before = len(server.bodies)
    response = served.http.post("/v1/chat/completions", json=CHAT | body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert len(server.bodies) == before


def test_a_stream_that_has_shown_text_ends_with_an_error_when_the_upstream_is_lost(
    client: openai.OpenAI, served: Served, server: UpstreamServer
) -> None:
    server.may_cut.clear()
    server.will("cut")
    chunks = iter(client.chat.completions.create(**CHAT, stream=True))
    first = [next(chunks).choices[0].delta.content for _ in range(2)]
    # The upstream is not back when the stream ends.
    server.models_status = 500
    server.may_cut.set()
    with pytest.raises(openai.APIError) as caught:
        next(chunks)
    server.models_status = 0
    assert caught.value.code == "upstream_lost"
    assert first == ["", "w0 "]
    wait_for(lambda: served.stage.inflight() == 0, "the job to be canceled")


def test_a_response_that_has_shown_text_ends_with_an_error_while_the_upstream_is_away(
    client: openai.OpenAI, served: Served, server: UpstreamServer
) -> None:
    server.may_cut.clear()
    server.will("cut")
    events = iter(client.responses.create(model="m", input="hello there", stream=True, max_output_tokens=12))
    next(event for event in events if event.type == "response.output_text.delta")
    server.models_status = 500
    server.may_cut.set()
    with pytest.raises(openai.APIError) as caught:
        list(events)
    server.models_status = 0
    assert caught.value.code == "upstream_lost"
    wait_for(lambda: served.stage.inflight() == 0, "the job to be canceled")


def test_a_call_without_a_stream_waits_for_the_next_attempt(client: openai.OpenAI, server: UpstreamServer) -> None:
    server.will("cut")
    assert client.chat.completions.create(**CHAT).choices[0].message.content == "w0 w1 w2 "


def test_a_cancel_closes_the_upstreams_connection_within_250_ms(
    client: openai.OpenAI, served: Served, server: UpstreamServer
) -> None:
    def closed_after(cancel: Callable[[], object]) -> float:
        closed, began_s = server.closed, monotonic()
        cancel()
        wait_for(lambda: server.closed == closed + 1, "the upstream to see that the request was closed")
        return monotonic() - began_s

    def attempt() -> Iterator[tuple[float, float]]:
        server.will("endless", "endless")
        stream = client.chat.completions.create(**CHAT | {"max_tokens": 4_000}, stream=True)
        assert next(iter(stream)) is not None
        yield closed_after(stream.close), 0.25
        job = served.submit(model="m", max_tokens=4_000).json()
        served.stage.wait_for_text(job["id"])
        yield closed_after(lambda: served.http.delete(job["urls"]["self"])), 0.25

    in_time(attempt)


def test_while_the_upstream_is_away_requests_are_read_as_before_and_refused(
    client: openai.OpenAI, served: Served, server: UpstreamServer
) -> None:
    server.stop()
    served.submit(model="m")
    wait_for(lambda: served.stage.store.snapshot().live_models == [], "the worker to be no longer live")
    try:
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(**CHAT, tools=TOOLS)
        assert (caught.value.status_code, caught.value.code) == (503, "no_worker")
    finally:
        server.start()
    wait_for(lambda: served.stage.store.snapshot().live_models == ["m"], "the worker to be live again")
    assert client.chat.completions.create(**CHAT).choices[0].message.content == "w0 w1 w2 "


def test_penstock_runs_in_front_of_penstock(client: openai.OpenAI, served: Served, tmp_path: Path) -> None:
    with sim_served(tmp_path, PENSTOCK_MAX_BATCH_SIZE="4") as behind, ThreadPoolExecutor(12) as threads:
        worker = served.stage.worker(PENSTOCK_UPSTREAM_URL=f"{behind.url}/v1", PENSTOCK_UPSTREAM_MODEL="sim")
        asked = [threads.submit(client.chat.completions.create, **(CHAT | {"model": "sim"})) for _ in range(12)]
        answers = [future.result(60) for future in asked]
        assert {answer.choices[0].message.content for answer in answers} == {"".join(f"w{i} " for i in range(2, 14))}
        assert {answer.usage.prompt_tokens for answer in answers if answer.usage} == {2}
        worker.terminate()
        assert worker.exit_code() == 0
        behind.stage.assert_sound()

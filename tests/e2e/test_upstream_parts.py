"""Reasoning and calls of tools of an upstream on `/v1/responses` and `/v1/messages`, with the stock packages."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from openai import OpenAI, OpenAIError

from tests.support.fits_schema import assert_fits
from tests.support.processes import Stage
from tests.support.served import Address, Served, random_model_served
from tests.support.tool_templates import a_tool
from tests.support.upstream_server import UpstreamServer

if TYPE_CHECKING:
    from anthropic import Anthropic

pytestmark = pytest.mark.ways("direct", reason="what is behind the door does not depend on the way to it")

ASKED: dict[str, Any] = {"model": "m", "input": "hello there"}
TOOLS: Any = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("weather", "time")]
MESSAGE: dict[str, Any] = {
    "model": "m",
    "max_tokens": 20,
    "messages": [{"role": "user", "content": "hello there"}],
    "tools": [{"name": name, "input_schema": {"type": "object"}} for name in ("weather", "time")],
}
THOUGHT = ("reasoning", "completed", "I must look.")
CALLS = [("function_call", "completed", name + '{"a":1}') for name in ("weather", "time")]


@pytest.fixture(scope="module")
def server() -> Iterator[UpstreamServer]:
    with UpstreamServer() as server:
        yield server


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory, server: UpstreamServer) -> Iterator[Served]:
    environ = {
        "PENSTOCK_ENGINE": "upstream",
        "PENSTOCK_UPSTREAM_URL": server.url,
        "PENSTOCK_UPSTREAM_MODEL": "m",
        "PENSTOCK_ADMISSION": "bounds",
    }
    with Stage(tmp_path_factory.mktemp("upstream"), **environ) as stage:
        stage.worker()
        with Served(stage) as served:
            yield served


@pytest.fixture
def claude(served: Address) -> Iterator["Anthropic"]:
    from anthropic import Anthropic

    with Anthropic(base_url=served.url, api_key="none", max_retries=0) as claude:
        yield claude


def read(items: list[Any]) -> list[tuple[str, str, str]]:
    """Return the type, the status and the text of each item of an output; of a call, its name and its arguments."""
    return [
        (
            item.type,
            item.status,
            item.name + item.arguments
            if item.type == "function_call"
            else "".join(part.text for part in item.content or ()),
        )
        for item in items
    ]


def respond(client: OpenAI, *, streams: bool, **more: Any) -> Any:
    """Return a response. If it is streamed, the items that it consists of must be those that the stream has shown."""
    if not streams:
        return client.responses.create(**ASKED | more)
    with client.responses.stream(**ASKED | more) as stream:
        events = list(stream)
    response: Any = events[-1].response  # type: ignore[union-attr]  # the last event has the whole response
    done: Any = [event.item for event in events if event.type == "response.output_item.done"]
    assert read(done) == read(response.output)
    assert [item.id for item in done] == [item.id for item in response.output]
    shown = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(shown) == "".join(item.arguments for item in done if item.type == "function_call")
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    return response


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("behaviour", ["tools", "tools at once", "tools by turns", "tools whole"])
def test_a_response_has_the_upstreams_reasoning_and_calls_as_items(
    client: OpenAI, server: UpstreamServer, behaviour: str, streams: bool
) -> None:
    server.will(behaviour)
    response = respond(client, streams=streams, tools=TOOLS, tool_choice="required")
    assert read(response.output) == [THOUGHT, *CALLS]
    assert [tool.name for tool in response.tools] == [tool["name"] for tool in TOOLS]
    assert response.tool_choice == "required"
    assert response.status == "completed"
    assert response.usage.output_tokens_details.reasoning_tokens == 4
    assert len({item.call_id for item in response.output[1:]}) == 2
    # Next, the model sees the call that it made, with the result that the client adds.
    result = {"type": "function_call_output", "call_id": response.output[1].call_id, "output": "sunny"}
    client.responses.create(model="m", input=[result], previous_response_id=response.id)
    _, said, told = server.bodies[-1]["messages"]
    assert [call["function"]["name"] for call in said["tool_calls"]] == ["weather", "time"]
    assert (told["role"], told["tool_call_id"]) == ("tool", said["tool_calls"][0]["id"])
    # Some servers refuse a message that has reasoning.
    assert set(said) == {"role", "content", "tool_calls"}


def a_call(**more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"name": "weather", "arguments": {"a": 1}}} | more]}


#: A message that strange servers send, in one piece or in the pieces of a stream → its text and its calls.
ODD: list[tuple[list[dict[str, Any]], str, int]] = [
    ([{"content": [{"type": "text", "text": "Hello"}]}], "Hello", 0),
    ([a_call(id="a"), a_call(id="b")], "", 2),
    ([{"function_call": {"name": "weather", "arguments": '{"a":1}'}}], "", 1),
    ([a_call(index=None)], "", 1),
]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("pieces", "text", "n_calls"), ODD, ids=["list", "index 0", "function_call", "null"])
def test_what_an_odd_server_says_reaches_the_clients_of_each_api(
    client: OpenAI, claude: "Anthropic", server: UpstreamServer, pieces: Any, text: str, n_calls: int, streams: bool
) -> None:
    choices = [{"index": 0, "message": piece} for piece in pieces]
    server.will(*[[*choices, {"index": 0, "delta": {}, "finish_reason": "end_turn"}]] * 3)
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "hello there"}]}
    if streams:
        with client.chat.completions.stream(**asked) as chunks:
            chat = chunks.get_final_completion().choices[0]
        with claude.messages.stream(**MESSAGE) as events:
            message = events.get_final_message()
    else:
        chat, message = client.chat.completions.create(**asked).choices[0], claude.messages.create(**MESSAGE)
    calls = [("weather", {"a": 1})] * n_calls
    assert (chat.message.content or "") == text
    assert [(one.function.name, json.loads(one.function.arguments)) for one in chat.message.tool_calls or ()] == calls
    assert chat.finish_reason == ("tool_calls" if calls else "stop")
    blocks: Any = message.content
    assert "".join(block.text for block in blocks if block.type == "text") == text
    assert [(block.name, block.input) for block in blocks if block.type == "tool_use"] == calls
    items = read(respond(client, streams=streams, tools=TOOLS).output)
    said = [("message", "completed", text)] if text else []
    assert items == said + [("function_call", "completed", 'weather{"a":1}')] * n_calls


def test_an_unintelligible_answer_is_an_error_on_each_api(
    client: OpenAI, claude: "Anthropic", server: UpstreamServer
) -> None:
    from anthropic import AnthropicError

    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "hello there"}]}
    for ask in (
        lambda: client.chat.completions.create(**asked),
        lambda: claude.messages.create(**MESSAGE),
        lambda: respond(client, streams=False),
    ):
        server.will(*[{"index": 0, "message": {"answer": "Hello"}}] * 3)
        with pytest.raises((OpenAIError, AnthropicError), match="without a part in OpenAI's format"):
            ask()


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("tools", [TOOLS, None])
def test_reasoning_at_the_end_of_a_stream_is_not_lost(
    client: OpenAI, server: UpstreamServer, tools: Any, streams: bool
) -> None:
    server.will("late reasoning")
    response = respond(client, streams=streams, **({"tools": tools} if tools else {}))
    assert read(response.output) == [("message", "completed", "Yes."), ("reasoning", "completed", "I hope.")]


def test_a_stream_with_late_reasoning_can_be_resumed_after_each_of_its_events(
    served: Address, client: OpenAI, server: UpstreamServer
) -> None:
    server.will("late reasoning")
    first = client.responses.create(**ASKED, background=True, stream=True)
    response: Any = next(iter(first)).response  # type: ignore[union-attr]  # the first event is `created`
    list(first)

    def events(more: str) -> list[dict[str, Any]]:
        frames = served.http.get(f"/v1/responses/{response.id}?stream=true{more}").text.split("\n\n")[:-1]
        return [json.loads(frame.partition("data: ")[2]) for frame in frames if "data: " in frame]

    whole = events("")
    assert whole[-1]["type"] == "response.completed"
    for index, event in enumerate(whole):
        assert events(f"&starting_after={event['sequence_number']}") == whole[index + 1 :]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("behaviour", ["tools", "tools at once", "tools by turns", "tools whole"])
def test_a_message_has_the_upstreams_reasoning_and_calls_as_blocks(
    claude: "Anthropic", server: UpstreamServer, behaviour: str, streams: bool
) -> None:
    server.will(behaviour)
    if streams:
        with claude.messages.stream(**MESSAGE) as stream:
            message = stream.get_final_message()
    else:
        message = claude.messages.create(**MESSAGE)
    thought, *calls = message.content
    assert (thought.type, getattr(thought, "thinking", None)) == ("thinking", "I must look.")
    assert [(call.type, getattr(call, "name", None), getattr(call, "input", None)) for call in calls] == [
        ("tool_use", "weather", {"a": 1}),
        ("tool_use", "time", {"a": 1}),
    ]
    assert message.stop_reason == "tool_use"


#: How an answer of the upstream ends → the word for it in chats, in responses and in messages.
ENDINGS: dict[str, tuple[str, str, str]] = {
    "tools": ("tool_calls", "completed", "tool_use"),
    "length": ("length", "max_output_tokens", "model_context_window_exceeded"),
    "content_filter": ("content_filter", "content_filter", "refusal"),
    "stop": ("stop", "completed", "end_turn"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_page_of_a_job_has_the_finish_reason_that_its_client_saw(
    client: OpenAI, claude: "Anthropic", served: Address, server: UpstreamServer, ending: str
) -> None:
    ends = {"index": 0, "message": {"content": "Hello"}, "finish_reason": ending}
    server.will(*[ending if ending == "tools" else ends] * 3)
    chat = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
    response, message = respond(client, streams=False), claude.messages.create(**MESSAGE)
    cut = response.incomplete_details
    seen = {
        chat.id: chat.choices[0].finish_reason,
        response.id: cut.reason if cut else response.status,
        message.id: message.stop_reason,
    }
    assert tuple(seen.values()) == ENDINGS[ending]
    for name, word in seen.items():
        page = served.http.get(f"/console/jobs/{re.split('[-_]', name, maxsplit=1)[1]}").text
        assert f"<dt>Finish reason</dt><dd><code>{word}</code></dd>" in page
        assert f">succeeded ({word})<" in page


@pytest.mark.parametrize("streams", [False, True])
def test_a_message_with_late_reasoning_has_all_of_it(
    claude: "Anthropic", server: UpstreamServer, streams: bool
) -> None:
    server.will("late reasoning")
    if streams:
        with claude.messages.stream(**MESSAGE) as stream:
            message = stream.get_final_message()
    else:
        message = claude.messages.create(**MESSAGE)
    said = {block.type: getattr(block, "text", None) or getattr(block, "thinking", None) for block in message.content}
    assert said == {"text": "Yes.", "thinking": "I hope."}


def test_a_real_upstream_calls_tools_on_both_routes(
    client: OpenAI, claude: "Anthropic", served: Address, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    function = a_tool("get_weather", city={"type": "string", "maxLength": 8}, unit={"enum": ["C", "F"]})["function"]
    with random_model_served(tmp_path) as behind:
        worker = served.stage.worker(
            PENSTOCK_UPSTREAM_URL=f"{behind.url}/v1", PENSTOCK_UPSTREAM_MODEL="m", PENSTOCK_MODEL_NAME="real"
        )
        asked: Any = {"model": "real", "tools": [{"type": "function"} | function], "tool_choice": "required"}
        for streams in (False, True):
            response = respond(client, streams=streams, **asked, parallel_tool_calls=False, max_output_tokens=400)
            (call,) = response.output
            assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
            assert_fits(function["parameters"], call.arguments)
        tool = {"name": "get_weather", "input_schema": function["parameters"]}
        wanted: Any = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
        with claude.messages.stream(
            **MESSAGE | {"model": "real", "max_tokens": 400, "tools": [tool], "tool_choice": wanted}
        ) as stream:
            message = stream.get_final_message()
        assert [block.type for block in message.content] == ["tool_use"]
        assert_fits(function["parameters"], json.dumps(getattr(message.content[0], "input", None)))
        worker.terminate()
        assert worker.exit_code() == 0
        behind.stage.assert_sound()

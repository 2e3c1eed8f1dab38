"""A loop of calls and results with the stock `openai` package and the demo model, which itself decides what to call."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.support.processes import Stage
from tests.support.served import Served
from tests.support.tool_templates import a_tool
from workers.demo import DEMO_MODEL_NAME, demo_model_path

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

pytestmark = pytest.mark.ways("direct", reason="other files test plain and streamed answers both ways")

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
TOOLS: Any = [
    a_tool("send_email", to=TEXT, text=TEXT),
    a_tool("get_weather", city=TEXT),
    a_tool("add_numbers", first=NUMBER, second=NUMBER),
]
for _tool, _description in zip(
    TOOLS, ("Send an email.", "Get the weather in a city.", "Add two numbers."), strict=True
):
    _tool["function"]["description"] = _description
#: The answers of a user's program for each tool.
RESULTS: dict[str, Any] = {
    "get_weather": {"temperature": 21, "condition": "sunny"},
    "add_numbers": {"result": 57},
    "send_email": "sent",
}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Stage(tmp_path_factory.mktemp("demo"), PENSTOCK_ENGINE="llama") as stage:
        stage.worker(PENSTOCK_MODEL=str(demo_model_path()))
        with Served(stage, PENSTOCK_AUTH="open") as served:
            yield served


def loop(client: OpenAI, question: str, *, stream: bool = False, **first: Any) -> tuple[str, dict[str, Any], str]:
    """Ask, answer the model's call with its result, and return the tool, its arguments and the last answer."""
    messages: list[Any] = [{"role": "user", "content": question}]
    request: Any = {"model": DEMO_MODEL_NAME, "messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 80}
    message = said(client, stream=stream, **request | first)
    (call,) = message["tool_calls"]
    name = call["function"]["name"]
    messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(RESULTS[name])}]
    after = said(client, stream=stream, **request)
    assert not after.get("tool_calls")
    return name, json.loads(call["function"]["arguments"]), after["content"]


def said(client: OpenAI, *, stream: bool, **request: Any) -> dict[str, Any]:
    """Return the assistant's message, as a client sends it back."""
    if not stream:
        return client.chat.completions.create(**request).choices[0].message.model_dump(exclude_none=True)
    with client.chat.completions.stream(**request) as events:
        for _ in events:
            pass
        message = events.get_final_completion().choices[0].message.model_dump(exclude_none=True)
    for call in message.get("tool_calls", ()):
        call["function"].pop("parsed_arguments", None)
    return message


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("choice", ["auto", "required", WEATHER], ids=["auto", "required", "named"])
def test_the_weather_in_paris_is_asked_of_the_right_tool_and_its_result_is_told(
    client: OpenAI, stream: bool, choice: Any
) -> None:
    name, arguments, answer = loop(client, "What is the weather in Paris?", stream=stream, tool_choice=choice)

    assert (name, arguments) == ("get_weather", {"city": "Paris"})
    assert "21" in answer
    assert "sunny" in answer
    assert "Paris" in answer


@pytest.mark.parametrize("city", ["Rome", "Oslo", "Helsinki"])
def test_the_city_of_the_call_is_that_of_the_question(client: OpenAI, city: str) -> None:
    name, arguments, answer = loop(client, f"How is the weather in {city}?")

    assert (name, arguments) == ("get_weather", {"city": city})
    assert city in answer


def test_numbers_are_added_by_the_tool_for_that(client: OpenAI) -> None:
    name, arguments, answer = loop(client, "What is 23 plus 34?")

    assert (name, arguments) == ("add_numbers", {"first": 23, "second": 34})
    assert "57" in answer


def test_a_request_for_a_story_is_answered_without_a_tool(client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Tell me a story"}]
    message = said(
        client, stream=False, model=DEMO_MODEL_NAME, messages=messages, tools=TOOLS, temperature=0, max_tokens=300
    )

    assert not message.get("tool_calls")
    assert len(message["content"].split()) > 50

"""anthropic for Python: messages, streams, the loop of calls and results, `tool_runner`, counts and models."""

from typing import Any, Literal

from anthropic import Anthropic, beta_tool
from check import BASE_URL, CITIES, KEY, MODEL, check, main

client = Anthropic(base_url=BASE_URL.removesuffix("/v1"), api_key=KEY, max_retries=0)
HELLO: Any = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": list(CITIES)}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"name": "weather", "description": "The weather.", "input_schema": SCHEMA}
#: The package has no argument for the temperature.
REQUEST: Any = {"model": MODEL, "max_tokens": 200, "messages": HELLO, "extra_body": {"temperature": 0}}
FORCED: Any = REQUEST | {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}


@check("message")
def _message() -> None:
    assert client.messages.create(**REQUEST).content[0].text


@check("stream")
def _stream() -> None:
    with client.messages.stream(**REQUEST | {"messages": [{"role": "user", "content": "Tell me a story."}]}) as stream:
        assert len(list(stream.text_stream)) > 1
        assert stream.get_final_message().stop_reason in {"end_turn", "max_tokens"}


@check("tool loop")
def _tools() -> None:
    asked = client.messages.create(**FORCED)
    (call,) = [block for block in asked.content if block.type == "tool_use"]
    assert call.input["city"] in CITIES
    told = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}
    turns = [*HELLO, {"role": "assistant", "content": asked.content}, told]
    assert client.messages.create(**REQUEST | {"messages": turns, "tools": [TOOL]}).content


@check("streamed tool calls")
def _streamed_tools() -> None:
    with client.messages.stream(**FORCED) as stream:
        (call,) = [block for block in stream.get_final_message().content if block.type == "tool_use"]
        assert call.input["city"] in CITIES


@check("tool_runner runs the function")
def _runner() -> None:
    called = []

    @beta_tool
    def weather(city: Literal["Paris", "Rome", "Oslo"]) -> str:
        """Tell the weather in a city."""
        called.append(city)
        return "sunny"

    choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    runner = client.beta.messages.tool_runner(**REQUEST, tools=[weather], tool_choice=choice, max_iterations=2)
    assert [message.role for message in runner] == ["assistant"] * 2
    assert called
    assert all(city in CITIES for city in called)


@check("a text document")
def _document() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "The sky is green."}
    parts = [{"type": "document", "source": source}, {"type": "text", "text": "Which color is the sky?"}]
    assert client.messages.create(**REQUEST | {"messages": [{"role": "user", "content": parts}]}).content[0].text


@check("count_tokens is within a tenth of what the message takes")
def _count() -> None:
    asked = " ".join(["The weather was mild when we left the harbor, and the ferry was nearly empty."] * 12)
    turns: Any = [{"role": "user", "content": f"{asked} What will it be like tomorrow in Oslo?"}]
    counted = client.messages.count_tokens(model=MODEL, messages=turns, tools=[TOOL]).input_tokens
    usage = client.messages.create(**REQUEST | {"messages": turns}, tools=[TOOL]).usage
    taken = usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    assert abs(counted - taken) <= taken / 10, (counted, taken)


@check("models")
def _models() -> None:
    listed = {model.id: model for model in client.models.list()}
    assert listed[MODEL].type == "model"
    assert listed[MODEL].display_name


main()

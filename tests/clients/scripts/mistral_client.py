"""mistralai: chats, streams, calls of tools, and parsed answers."""

from typing import Any, Literal

from check import BASE_URL, CITIES, KEY, MODEL, check, main
from mistralai.client import Mistral
from pydantic import BaseModel

client = Mistral(api_key=KEY, server_url=BASE_URL.removesuffix("/v1"))
HELLO: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
REQUEST: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 200, "temperature": 0}
SCHEMA = {"type": "object", "properties": {"city": {"enum": list(CITIES)}}, "required": ["city"]}
TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA}}


class Trip(BaseModel):
    """A trip."""

    city: Literal["Paris", "Rome", "Oslo"]


@check("chat")
def _chat() -> None:
    assert client.chat.complete(**REQUEST).choices[0].message.content


@check("chat with a seed")
def _seed() -> None:
    sampled = REQUEST | {"temperature": 1.0, "random_seed": 7}
    texts = {client.chat.complete(**sampled).choices[0].message.content for _ in range(2)}
    assert len(texts) == 1


@check("stream")
def _stream() -> None:
    with client.chat.stream(**REQUEST) as events:
        assert len(list(events)) > 1


@check("tool loop")
def _tools() -> None:
    asked = client.chat.complete(**REQUEST, tools=[TOOL], tool_choice="any").choices[0].message
    call = asked.tool_calls[0]
    assert any(city in str(call.function.arguments) for city in CITIES)
    told = [{"role": "tool", "name": "weather", "content": "sunny", "tool_call_id": one.id} for one in asked.tool_calls]
    turns = REQUEST | {"messages": [*HELLO, asked, *told]}
    assert client.chat.complete(**turns, tools=[TOOL], tool_choice="none").choices[0].message.content


@check("parsed answers")
def _parsed() -> None:
    answer = client.chat.parse(Trip, **REQUEST)
    assert answer.choices[0].message.parsed.city in CITIES


main()

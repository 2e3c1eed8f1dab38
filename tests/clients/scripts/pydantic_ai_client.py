"""pydantic-ai: an agent with typed output, one that calls a function, and a streamed one."""

import asyncio
from typing import Literal

from check import BASE_URL, CITIES, KEY, MODEL, check, main
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key=KEY))
SETTINGS = {"max_tokens": 300, "temperature": 0}
LIMITS = UsageLimits(request_limit=8)


class Trip(BaseModel):
    """A trip."""

    city: Literal["Paris", "Rome", "Oslo"]
    days: Literal[1, 2, 3]


@check("text")
def _text() -> None:
    assert Agent(model, model_settings=SETTINGS).run_sync("hello").output


@check("typed output, default mode")
def _typed() -> None:
    assert Agent(model, output_type=Trip, model_settings=SETTINGS).run_sync("a trip").output.city in CITIES


@check("typed output by JSON schema")
def _native() -> None:
    agent = Agent(model, output_type=NativeOutput(Trip), model_settings=SETTINGS)
    assert agent.run_sync("a trip").output.city in CITIES


@check("agent with a function")
def _function() -> None:
    calls = []
    agent = Agent(model, output_type=Trip, model_settings=SETTINGS)

    @agent.tool_plain
    def weather(city: Literal["Paris", "Rome", "Oslo"]) -> str:
        """Tell the weather in a city."""
        calls.append(city)
        return "sunny"

    assert agent.run_sync("a trip where it is sunny", usage_limits=LIMITS).output.city in CITIES
    assert all(city in CITIES for city in calls)


@check("stream")
def _stream() -> None:
    async def run() -> list[str]:
        async with Agent(model, model_settings=SETTINGS).run_stream("hello") as result:
            return [text async for text in result.stream_text(delta=True, debounce_by=None)]

    assert len(asyncio.run(run())) > 1


main()

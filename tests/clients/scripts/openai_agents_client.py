"""openai-agents: an agent with typed output and one with a function, over responses and over chat completions."""

import asyncio
from dataclasses import replace
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from check import CITIES, MODEL, check, main
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)
#: The package takes an answer that was cut by its length for an error. The model with random weights seldom ends one.
SETTINGS = ModelSettings(max_tokens=400, temperature=0, extra_body={"stop": [" t", " h", " d", "."]})
FORCED = replace(SETTINGS, tool_choice="required", parallel_tool_calls=False)
KINDS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}


class Trip(BaseModel):
    """A trip."""

    city: Literal["Paris", "Rome", "Oslo"]
    days: Literal[1, 2, 3]


def _register(name: str) -> None:
    def model() -> OpenAIResponsesModel | OpenAIChatCompletionsModel:
        return KINDS[name](model=MODEL, openai_client=AsyncOpenAI())

    @check(f"text over {name}")
    def _text() -> None:
        agent = Agent(name="a", instructions="Be brief.", model=model(), model_settings=SETTINGS)
        assert Runner.run_sync(agent, "hello").final_output

    @check(f"stream over {name}")
    def _stream() -> None:
        async def run() -> int:
            agent = Agent(name="a", model=model(), model_settings=SETTINGS)
            return len([event async for event in Runner.run_streamed(agent, "hello").stream_events()])

        assert asyncio.run(run()) > 1

    @check(f"typed output over {name}")
    def _typed() -> None:
        agent = Agent(name="a", model=model(), model_settings=SETTINGS, output_type=Trip)
        assert Runner.run_sync(agent, "a trip").final_output.city in CITIES

    @check(f"agent with a function over {name}")
    def _function() -> None:
        calls = []

        @function_tool
        def weather(city: Literal["Paris", "Rome", "Oslo"]) -> str:
            """Tell the weather in a city."""
            calls.append(city)
            return "sunny"

        agent = Agent(name="a", model=model(), model_settings=FORCED, tools=[weather])
        assert Runner.run_sync(agent, "the weather in Paris?").final_output
        assert calls
        assert all(city in CITIES for city in calls)


for _name in KINDS:
    _register(_name)
main()

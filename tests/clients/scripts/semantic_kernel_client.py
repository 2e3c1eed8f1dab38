"""semantic-kernel: chats, streams, a plugin's function that is called by itself, and structured output."""

import asyncio
from typing import Annotated, Literal

from check import CITIES, MODEL, check, main
from openai import AsyncOpenAI
from pydantic import BaseModel
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function

CALLED: list[str] = []


class Trip(BaseModel):
    """A trip."""

    city: Literal["Paris", "Rome", "Oslo"]


class Weather:
    """A plugin."""

    @kernel_function(description="Tell the weather in a city.")
    def weather(self, city: Annotated[str, "Paris, Rome or Oslo"]) -> str:
        """Tell the weather in a city."""
        CALLED.append(city)
        return f"sunny in {city}"


def service() -> OpenAIChatCompletion:
    """Return a service with a client of its own, since each check has an event loop of its own."""
    return OpenAIChatCompletion(ai_model_id=MODEL, async_client=AsyncOpenAI())


def history() -> ChatHistory:
    """Return a history of one question."""
    return ChatHistory(system_message="Be brief.").from_rendered_prompt("What is the weather in Paris?")


SETTINGS = {"max_tokens": 200, "temperature": 0.0}


@check("chat")
def _chat() -> None:
    answer = service().get_chat_message_content(history(), OpenAIChatPromptExecutionSettings(**SETTINGS))
    assert str(asyncio.run(answer))


@check("stream")
def _stream() -> None:
    async def run() -> int:
        settings = OpenAIChatPromptExecutionSettings(**SETTINGS)
        return len([part async for part in service().get_streaming_chat_message_contents(history(), settings)])

    assert asyncio.run(run()) > 1


@check("a plugin's function is called")
def _plugin() -> None:
    CALLED.clear()
    kernel = Kernel()
    kernel.add_plugin(Weather(), "weather")
    behavior = FunctionChoiceBehavior.Required(auto_invoke=True, maximum_auto_invoke_attempts=1)
    settings = OpenAIChatPromptExecutionSettings(**SETTINGS, function_choice_behavior=behavior)
    asyncio.run(service().get_chat_message_contents(history(), settings, kernel=kernel))
    assert CALLED


@check("structured output")
def _schema() -> None:
    settings = OpenAIChatPromptExecutionSettings(**SETTINGS, response_format=Trip)
    answer = asyncio.run(service().get_chat_message_content(history(), settings))
    assert Trip.model_validate_json(str(answer)).city in CITIES


main()

"""haystack: a generator, its stream, calls of tools, an agent, structured output, and a pipeline."""

from typing import Literal

from check import BASE_URL, CITIES, KEY, MODEL, check, main
from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from pydantic import BaseModel

HELLO = [ChatMessage.from_user("What is the weather in Paris?")]


class Trip(BaseModel):
    """A trip."""

    city: Literal["Paris", "Rome", "Oslo"]


def generator(**settings: object) -> OpenAIChatGenerator:
    """Return a generator with greedy sampling and these settings of a request."""
    sampling = {"max_tokens": 200, "temperature": 0} | settings
    return OpenAIChatGenerator(Secret.from_token(KEY), MODEL, api_base_url=BASE_URL, generation_kwargs=sampling)


def weather(city: Literal["Paris", "Rome", "Oslo"]) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


@check("chat")
def _chat() -> None:
    assert generator().run(HELLO)["replies"][0].text


@check("stream")
def _stream() -> None:
    chunks = []
    generator().run(HELLO, streaming_callback=chunks.append)
    assert len(chunks) > 1


@check("tool loop")
def _tools() -> None:
    tool = create_tool_from_function(weather)
    asked = generator(tool_choice="required").run(HELLO, tools=[tool])["replies"]
    assert asked[0].tool_calls[0].arguments["city"] in CITIES
    told = [ChatMessage.from_tool("sunny", origin=call) for call in asked[0].tool_calls]
    assert generator(tool_choice="none").run([*HELLO, *asked, *told], tools=[tool])["replies"][0].text


@check("an agent with a function")
def _agent() -> None:
    tools = [create_tool_from_function(weather)]
    agent = Agent(chat_generator=generator(tool_choice="required"), tools=tools, exit_conditions=["weather"])
    assert agent.run(messages=HELLO)["messages"][-1].tool_call_results


@check("structured output")
def _schema() -> None:
    text = generator(response_format=Trip).run([ChatMessage.from_user("a trip")])["replies"][0].text
    assert Trip.model_validate_json(text).city in CITIES


@check("a pipeline")
def _pipeline() -> None:
    pipeline = Pipeline()
    pipeline.add_component("prompt", ChatPromptBuilder([ChatMessage.from_user("hello {{ name }}")]))
    pipeline.add_component("llm", generator())
    pipeline.connect("prompt", "llm")
    assert pipeline.run({"prompt": {"name": "world"}})["llm"]["replies"][0].text


main()

"""LlamaIndex: chats, streams, structured prediction and a function-calling agent."""

import asyncio
from typing import Literal

from check import BASE_URL, CITIES, KEY, MODEL, check, main
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

llm = OpenAILike(
    model=MODEL,
    api_base=BASE_URL,
    api_key=KEY,
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=2048,
    max_tokens=200,
    temperature=0,
)


class Trip(BaseModel):
    """A trip."""

    city: Literal["Paris", "Rome", "Oslo"]
    days: Literal[1, 2, 3]


def weather(city: Literal["Paris", "Rome", "Oslo"]) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


@check("chat")
def _chat() -> None:
    assert llm.chat([ChatMessage(role="user", content="hello")]).message.content


@check("completion")
def _completion() -> None:
    assert llm.complete("hello").text


@check("stream")
def _stream() -> None:
    assert len(list(llm.stream_chat([ChatMessage(role="user", content="hello")]))) > 1


@check("predict_and_call")
def _predict() -> None:
    answer = llm.predict_and_call([FunctionTool.from_defaults(weather)], "the weather in Paris?", tool_required=True)
    assert str(answer).removeprefix("sunny in ") in CITIES


@check("structured prediction")
def _structured() -> None:
    assert llm.structured_predict(Trip, PromptTemplate("a trip")).city in CITIES


@check("agent with a function")
def _agent() -> None:
    async def run() -> str:
        agent = FunctionAgent(tools=[weather], llm=llm, initial_tool_choice="weather")
        return str(await agent.run("the weather in Paris?"))

    assert asyncio.run(run())


main()

"""LangChain: chats, streams, calls of tools by `bind_tools`, and `with_structured_output`."""

from typing import Literal

from check import BASE_URL, CITIES, KEY, MODEL, check, main
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

llm = ChatOpenAI(base_url=BASE_URL, api_key=KEY, model=MODEL, max_tokens=200, temperature=0)


@tool
def weather(city: Literal["Paris", "Rome", "Oslo"], unit: Literal["C", "F"]) -> str:
    """Tell the weather in a city."""
    return f"12 {unit} in {city}"


class Trip(BaseModel):
    """A trip."""

    city: Literal["Paris", "Rome", "Oslo"]
    days: Literal[1, 2, 3]


@check("chat")
def _chat() -> None:
    assert llm.invoke("hello").content


@check("stream")
def _stream() -> None:
    assert len([chunk for chunk in llm.stream("hello") if chunk.content]) > 1


@check("tool loop with bind_tools")
def _tools() -> None:
    question = HumanMessage("What is the weather in Paris?")
    asked = llm.bind_tools([weather], tool_choice="any").invoke([question])
    (call,) = asked.tool_calls[:1]
    assert call["args"]["city"] in CITIES
    told = [ToolMessage(weather.invoke(one["args"]), tool_call_id=one["id"]) for one in asked.tool_calls]
    assert llm.bind_tools([weather], tool_choice="none").invoke([question, asked, *told]).content


@check("streamed tool calls")
def _streamed_tools() -> None:
    whole = None
    for chunk in llm.bind_tools([weather], tool_choice="weather").stream("the weather?"):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.tool_calls[0]["args"]["city"] in CITIES


@check("bind_tools, the model decides")
def _auto() -> None:
    assert llm.bind_tools([weather]).invoke("hello").response_metadata["finish_reason"]


@check("with_structured_output by JSON schema")
def _schema() -> None:
    assert llm.with_structured_output(Trip).invoke("a trip").city in CITIES


@check("with_structured_output by function calling")
def _function() -> None:
    assert llm.with_structured_output(Trip, method="function_calling").invoke("a trip").city in CITIES


main()

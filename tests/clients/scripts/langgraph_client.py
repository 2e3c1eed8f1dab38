"""langgraph: a prebuilt agent with a function, its stream, and an agent with typed output."""

from typing import Literal

from check import BASE_URL, CITIES, KEY, MODEL, check, main
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from pydantic import BaseModel

llm = ChatOpenAI(base_url=BASE_URL, api_key=KEY, model=MODEL, max_tokens=200, temperature=0)
#: An agent with typed output asks again, however often, if the model fills in the type twice in one answer.
one_call = llm.model_copy(update={"model_kwargs": {"parallel_tool_calls": False}})
CALLED: list[str] = []
HELLO = {"messages": [{"role": "user", "content": "What is the weather in Paris?"}]}


@tool
def weather(city: Literal["Paris", "Rome", "Oslo"]) -> str:
    """Tell the weather in a city."""
    CALLED.append(city)
    return f"sunny in {city}"


class Trip(BaseModel):
    """A trip."""

    city: Literal["Paris", "Rome", "Oslo"]


def graph():
    """Return a graph that calls the model with a forced tool, runs it, and calls the model again."""
    forced, free = llm.bind_tools([weather], tool_choice="weather"), llm.bind_tools([weather], tool_choice="none")
    built = StateGraph(MessagesState)
    built.add_node("ask", lambda state: {"messages": [forced.invoke(state["messages"])]})
    built.add_node("run", ToolNode([weather]))
    built.add_node("tell", lambda state: {"messages": [free.invoke(state["messages"])]})
    for before, after in ((START, "ask"), ("ask", "run"), ("run", "tell"), ("tell", END)):
        built.add_edge(before, after)
    return built.compile()


@check("a graph that calls a function and tells the result")
def _graph() -> None:
    CALLED.clear()
    messages = graph().invoke(HELLO)["messages"]
    assert [message.type for message in messages][:3] == ["human", "ai", "tool"]
    assert CALLED
    assert all(city in CITIES for city in CALLED)


@check("its stream of tokens")
def _stream() -> None:
    assert len([chunk for chunk, _ in graph().stream(HELLO, stream_mode="messages")]) > 3


@check("a prebuilt agent, the model decides")
def _agent() -> None:
    assert create_agent(llm, [weather]).invoke(HELLO, {"recursion_limit": 6})["messages"][-1].type == "ai"


@check("a prebuilt agent with typed output")
def _typed() -> None:
    agent = create_agent(one_call, [], response_format=ToolStrategy(Trip))
    asked = {"messages": [{"role": "user", "content": "a trip"}]}
    assert agent.invoke(asked, {"recursion_limit": 6})["structured_response"].city in CITIES


main()

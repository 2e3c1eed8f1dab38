"""Calls of tools through the stock `openai` package, plain and streamed, with a model that was never taught any."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.support.fits_schema import assert_fits
from tests.support.served import Served, random_model_served
from tests.support.tool_templates import a_tool

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

pytestmark = pytest.mark.ways("direct", reason="other files test plain and streamed answers both ways")

WEATHER = a_tool("get_weather", city={"type": "string", "maxLength": 8}, unit={"enum": ["C", "F"]})
TIME = a_tool("get_time", hour={"type": "integer", "minimum": 0, "maximum": 23})
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (WEATHER, TIME)}
QUESTION: Any = {"role": "user", "content": "dibo kufe"}
REQUEST: Any = {"model": "m", "messages": [QUESTION], "tools": [WEATHER, TIME], "max_tokens": 400, "seed": 4}
ONE_CALL: Any = REQUEST | {"tool_choice": "required", "parallel_tool_calls": False}
#: A call of some sixty tokens. In a longer one, two tokens may be so close that equal requests differ (docs/engine.md).
NOTE = a_tool("note", text={"type": "string", "minLength": 200, "maxLength": 220})
LONG_CALL: Any = ONE_CALL | {"tools": [NOTE], "max_tokens": 900}
NAMED: Any = {"type": "function", "function": {"name": "get_time"}}


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with random_model_served(tmp_path_factory.mktemp("tools")) as served:
        yield served


def check(name: str, arguments: str) -> None:
    assert_fits(SCHEMAS[name], arguments)


def test_the_loop_of_calls_and_results_works_plain(client: OpenAI) -> None:
    answer = client.chat.completions.create(**ONE_CALL)
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    check(call.function.name, call.function.arguments)
    history = [QUESTION, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    after = client.chat.completions.create(**REQUEST | {"messages": history, "tool_choice": "none", "max_tokens": 9})
    assert after.choices[0].message.content
    assert after.choices[0].message.tool_calls is None
    assert after.usage is not None
    assert answer.usage is not None
    assert after.usage.prompt_tokens > 30


def test_a_streamed_call_arrives_in_pieces_and_is_the_call_of_the_plain_answer(client: OpenAI) -> None:
    plain = client.chat.completions.create(**LONG_CALL).choices[0].message.tool_calls
    assert plain is not None
    assert plain[0].type == "function"
    name, pieces, ids, reasons = "", [], [], []
    for chunk in client.chat.completions.create(**LONG_CALL, stream=True):
        choice = chunk.choices[0]
        reasons.append(choice.finish_reason)
        for piece in choice.delta.tool_calls or ():
            assert piece.index == 0
            assert piece.function is not None
            name += piece.function.name or ""
            ids += [piece.id] if piece.id else []
            pieces.append(piece.function.arguments or "")
    assert (name, "".join(pieces)) == (plain[0].function.name, plain[0].function.arguments)
    assert len(pieces) > 2, "the arguments arrive while they are generated"
    assert len(ids) == 1
    assert reasons[-1] == "tool_calls"
    assert set(reasons[:-1]) == {None}


def test_the_package_s_own_stream_helper_reads_the_call(client: OpenAI) -> None:
    with client.chat.completions.stream(**ONE_CALL) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.tool_calls
    check(
        final.choices[0].message.tool_calls[0].function.name, final.choices[0].message.tool_calls[0].function.arguments
    )


def test_a_named_function_is_called_and_no_other(client: OpenAI) -> None:
    for seed in range(3):
        answer = client.chat.completions.create(**REQUEST | {"tool_choice": NAMED, "seed": seed})
        calls: Any = answer.choices[0].message.tool_calls
        assert [call.function.name for call in calls] == ["get_time"]
        check("get_time", calls[0].function.arguments)


def test_without_a_choice_the_model_may_answer_with_text(client: OpenAI) -> None:
    answer = client.chat.completions.create(**REQUEST | {"max_tokens": 12})
    message = answer.choices[0].message
    assert message.content
    assert message.tool_calls is None
    assert answer.choices[0].finish_reason == "length"


def test_arguments_that_are_cut_by_max_tokens_end_with_length(client: OpenAI) -> None:
    answer = client.chat.completions.create(**REQUEST | {"tools": [NOTE], "tool_choice": "required", "max_tokens": 40})
    assert answer.choices[0].finish_reason == "length"
    calls: Any = answer.choices[0].message.tool_calls
    assert calls[0].function.name == "note"
    assert calls[0].function.arguments.startswith("{")
    assert not calls[0].function.arguments.endswith("}")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [a_tool("f", a={"not": {"type": "null"}})]}, "tools[0].function.parameters"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [WEATHER, {"type": "function", "function": {"name": "a b"}}]}, "tools[1].function.name"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice.function.name"),
        ({"tools": [a_tool("f", a={"enum": ["x" * 70_000]})]}, "tools[0].function.parameters"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ],
)
def test_tools_that_cannot_be_used_are_refused_by_name(client: OpenAI, more: dict[str, Any], param: str) -> None:
    with pytest.raises((openai.BadRequestError, openai.UnprocessableEntityError)) as caught:
        client.chat.completions.create(**REQUEST | more)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["param"] == param


RESPONSE: Any = {
    "model": "m",
    "input": "dibo kufe",
    "tools": [{"type": "function"} | tool["function"] for tool in (WEATHER, TIME)],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_output_tokens": 900,
    "extra_body": {"seed": 4},
}


def test_the_loop_of_calls_and_outputs_works_with_responses(client: OpenAI) -> None:
    answer = client.responses.create(**RESPONSE)
    (call,) = answer.output
    assert call.type == "function_call"
    assert (answer.status, call.status) == ("completed", "completed")
    check(call.name, call.arguments)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    history: Any = [{"role": "user", "content": RESPONSE["input"]}, call.to_dict(), output]
    more: Any = {"input": history, "tool_choice": "none", "max_output_tokens": 9}
    after = client.responses.create(**RESPONSE | more)
    assert after.output_text
    # The model sees the same if the door remembers the question and the call.
    continued = client.responses.create(**RESPONSE | more | {"input": [output], "previous_response_id": answer.id})
    assert continued.output_text == after.output_text
    assert continued.usage is not None
    assert after.usage is not None
    assert continued.usage.input_tokens == after.usage.input_tokens


def test_a_response_streams_the_arguments_of_its_call(client: OpenAI) -> None:
    events: list[Any] = list(
        client.responses.create(**RESPONSE | {"tools": [{"type": "function"} | NOTE["function"]]}, stream=True)
    )
    kinds = [event.type.removeprefix("response.") for event in events]
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert len(deltas) > 1
    assert "".join(deltas) == done.arguments
    (call,) = events[-1].response.output
    assert (call.arguments, call.name) == (done.arguments, done.name)
    assert kinds[:4] == ["created", "queued", "in_progress", "output_item.added"]
    assert kinds[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))


def test_the_package_s_own_stream_helper_reads_a_response_with_a_call(client: OpenAI) -> None:
    with client.responses.stream(**RESPONSE) as stream:
        for _ in stream:
            pass
        (call,) = stream.get_final_response().output
    assert call.type == "function_call"
    check(call.name, call.arguments)

"""Tests of the input items of `/v1/responses`: calls and their results become messages of a chat."""

import pytest

from web.http.api_errors import ApiError
from web.openai.responses_tools import ResponsesWithTools
from web.openai.tools_schema import MAX_TOOLS

HI = {"role": "user", "content": "hi"}


def a_call(number=0):
    return {"type": "function_call", "call_id": f"c{number}", "name": "look", "arguments": "{}"}


def messages_of(*items):
    return ResponsesWithTools.model_validate({"model": "m", "input": [*items]}).payload()["messages"]


def test_calls_that_follow_a_message_of_the_assistant_are_part_of_it():
    said = {"role": "assistant", "content": "I look."}
    calls = [a_call(number) for number in range(MAX_TOOLS)]
    result = {"type": "function_call_output", "call_id": "c0", "output": "sunny"}
    user, first, told, second = messages_of(HI, said, *calls, result, a_call(1000))
    assert (user, first["content"], told["role"]) == (HI, "I look.", "tool")
    assert [call["id"] for call in first["tool_calls"]] == [call["call_id"] for call in calls]
    assert (second["content"], second["tool_calls"][0]["id"]) == ("", "c1000")
    assert said == {"role": "assistant", "content": "I look."}, "the client's own body stays as it is"


@pytest.mark.parametrize("before", [[HI], [HI, {"role": "assistant", "content": "I look."}]])
def test_more_calls_in_a_row_than_a_message_may_have_are_refused_at_the_first_of_them(before):
    with pytest.raises(ApiError) as refused:
        messages_of(*before, *map(a_call, range(9_000)))
    assert refused.value.code == "invalid_value"
    assert refused.value.param == f"input[{len(before) + MAX_TOOLS}]"
    assert str(MAX_TOOLS) in refused.value.message

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


def a_thought(*texts, **more):
    return {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text} for text in texts],
    } | more


def test_reasoning_is_part_of_the_message_that_it_precedes():
    result = {"type": "function_call_output", "call_id": "c0", "output": "sunny"}
    said = {"role": "assistant", "content": "I look."}
    items = [HI, a_thought("A"), a_thought("B"), said, a_thought("C"), a_call(), result, a_thought("D"), a_call(1), HI]
    told = messages_of(*items)
    assert [message.get("reasoning_content") for message in told] == [None, "AB\n\nC", None, "D", None]
    assert said == {"role": "assistant", "content": "I look."}, "the client's own body stays as it is"


def test_reasoning_without_a_text_or_before_no_message_of_the_assistant_is_left_out():
    empty = [a_thought(), a_thought(content=None, encrypted_content="x"), a_thought(content=[{"text": 1}, "x"])]
    told = messages_of(*empty, a_call(), a_thought("A"), HI, a_thought("B"))
    assert [message["role"] for message in told] == ["assistant", "user"]
    assert not any("reasoning_content" in message for message in told)


@pytest.mark.parametrize("before", [[HI], [HI, {"role": "assistant", "content": "I look."}]])
def test_more_calls_in_a_row_than_a_message_may_have_are_refused_at_the_first_of_them(before):
    with pytest.raises(ApiError) as refused:
        messages_of(*before, *map(a_call, range(9_000)))
    assert refused.value.code == "invalid_value"
    assert refused.value.param == f"input[{len(before) + MAX_TOOLS}]"
    assert str(MAX_TOOLS) in refused.value.message


def a_result(output):
    return {"type": "function_call_output", "call_id": "c0", "output": output}


@pytest.mark.parametrize(
    ("output", "named"),
    [
        (5, "input[2].output"),
        (True, "input[2].output"),
        ({"text": "sunny"}, "input[2].output"),
        ("a\x00", "input[2].output"),
        (["sunny"], "input[2].output[0]"),
        ([{"type": "input_text", "text": "sunny"}, {"type": "input_image", "image_url": "x"}], "input[2].output[1]"),
        ([{"type": "refusal", "refusal": "no"}], "input[2].output[0]"),
    ],
)
def test_the_error_about_a_result_names_its_output_by_the_place_in_the_body(output, named):
    # The reasoning and the call become one message, so the places of messages differ from those of items.
    with pytest.raises(ApiError) as refused:
        messages_of(a_thought("A"), a_call(), a_result(output), HI)
    assert refused.value.param == named
    assert named in refused.value.message


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("sunny", "sunny"),
        ([{"type": "input_text", "text": "sun"}, {"type": "output_text", "text": "ny"}], "sunny"),
        ([], ""),
        (None, ""),
    ],
)
def test_a_result_is_a_text_or_a_list_of_texts(output, text):
    assert messages_of(a_call(), a_result(output))[1] == {"role": "tool", "tool_call_id": "c0", "content": text}


def test_a_message_in_which_the_assistant_refused_to_answer_is_accepted():
    said = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed"}
    parts = [{"type": "output_text", "text": "Well, ", "annotations": []}, {"type": "refusal", "refusal": "I can't."}]
    assert messages_of(HI, said | {"content": parts})[1] == {"role": "assistant", "content": "Well, I can't."}

"""Tests which tools, choices and messages with calls a chat accepts, and what the engine gets of them."""

from typing import Any

import pytest
from pydantic import ValidationError

from web.http.api_errors import ApiError
from web.openai.chat_messages import MAX_TOOLS
from web.openai.chat_schema import ChatWithTools

HI = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


OTHER = {"type": "function", "function": {"name": "g"}}


def allowed(mode: str, *names: Any) -> dict[str, Any]:
    """The choice of some of the tools."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def payload(**body: Any) -> dict[str, Any]:
    return ChatWithTools.model_validate({"messages": [HI]} | body).payload()


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"tools": [TOOL]}, {"tools": [TOOL]}),
        ({"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True}, {"tools": [TOOL]}),
        ({"tools": [TOOL], "tool_choice": "required"}, {"tools": [TOOL], "tool_choice": "required"}),
        ({"tools": [TOOL], "tool_choice": "any"}, {"tools": [TOOL], "tool_choice": "required"}),
        ({"tools": [TOOL], "tool_choice": NAMED}, {"tools": [TOOL], "tool_choice": NAMED}),
        ({"tools": [TOOL], "parallel_tool_calls": False}, {"tools": [TOOL], "parallel_tool_calls": False}),
        ({"tools": [TOOL], "tool_choice": "none"}, {}),
        ({"tools": [TOOL, OTHER], "tool_choice": allowed("auto", "g")}, {"tools": [OTHER]}),
        ({"tools": [TOOL, OTHER], "tool_choice": allowed("auto", "g", "f")}, {"tools": [TOOL, OTHER]}),
        (
            {"tools": [TOOL, OTHER], "tool_choice": allowed("required", "f")},
            {"tools": [TOOL], "tool_choice": "required"},
        ),
        ({"tools": [], "tool_choice": "auto"}, {}),
        ({"tools": None, "tool_choice": None, "parallel_tool_calls": None}, {}),
    ],
)
def test_the_engine_gets_tools_only_if_the_answer_may_call_them(body: dict[str, Any], fields: dict[str, Any]) -> None:
    names = ("tools", "tool_choice", "parallel_tool_calls")
    assert {name: given for name, given in payload(**body).items() if name in names} == fields


def test_null_fields_and_what_no_engine_reads_are_left_out_of_a_function() -> None:
    given = {"type": "function", "function": {"name": "f", "description": None, "strict": True, "cache_control": {}}}
    assert payload(tools=[given])["tools"] == [{"type": "function", "function": {"name": "f", "strict": True}}]


def test_calls_and_results_keep_what_the_model_reads_of_them() -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": [CALL | {"index": 0}], "refusal": None}
    result = {"role": "tool", "tool_call_id": "c", "name": "f", "content": [{"type": "text", "text": "done"}]}
    assert payload(messages=[HI, asked, result])["messages"] == [
        HI,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
    ]


def test_reasoning_of_the_assistant_is_kept_by_either_of_its_names() -> None:
    thoughts: list[dict[str, Any]] = [
        {"reasoning_content": "Hm."},
        {"reasoning": "Hm."},
        {"reasoning": {"effort": 1}},
        {},
    ]
    asked = [{"role": "assistant", "content": "I look."} | thought for thought in thoughts]
    called = asked[0] | {"tool_calls": [CALL]}
    told = payload(messages=[HI | {"reasoning_content": "Hm."}, *asked, called])["messages"]
    assert [message.get("reasoning_content") for message in told] == [None, "Hm.", "Hm.", None, None, "Hm."]
    assert told[-1]["tool_calls"] == [CALL]
    with pytest.raises(ValidationError, match=r"messages\.0\.reasoning_content"):
        payload(messages=[{"role": "assistant", "content": "", "reasoning_content": 5}])


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"tools": [TOOL] * (MAX_TOOLS + 1)}, "invalid_value", "tools"),
        ({"tools": [TOOL, TOOL]}, "invalid_value", "tools"),
        ({"tools": ["f"]}, "invalid_value", "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "invalid_value", "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "x" * 65}}]}, "invalid_value", "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "invalid_value",
            "tools[0].function.parameters.type",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {"type": "null"}}}}]},
            "unsupported_parameter",
            "tools[0].function.parameters",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "custom"}}, "unsupported_parameter", "tool_choice.type"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}},
            "invalid_value",
            "tool_choice.allowed_tools",
        ),
        ({"tools": [TOOL], "tool_choice": allowed("any", "f")}, "invalid_value", "tool_choice.allowed_tools.mode"),
        ({"tools": [TOOL], "tool_choice": allowed("auto")}, "invalid_value", "tool_choice.allowed_tools.tools"),
        ({"tools": [TOOL], "tool_choice": allowed("auto", "f", "g")}, "invalid_value", "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": allowed("auto", None)},
            "invalid_value",
            "tool_choice.allowed_tools.tools[0].function.name",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "invalid_value",
            "tool_choice.function.name",
        ),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "invalid_value", "tool_choice"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "invalid_value", "messages[0].tool_call_id"),
        ({"messages": [HI | {"tool_calls": [CALL]}]}, "invalid_value", "messages[0].tool_calls"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]},
            "unsupported_parameter",
            "messages[0].tool_calls[0].type",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(body: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        payload(**body)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_variables_of_the_template_reach_the_engine() -> None:
    given = {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}
    assert {name: payload(**given)[name] for name in given} == given


@pytest.mark.parametrize(
    "variables", [{"messages": "x"}, {"a b": 1}, {"x": "y" * 257}, {"x": [1]}, {str(i): 1 for i in range(17)}]
)
def test_variables_that_the_engine_sets_or_that_are_too_large_are_refused(variables: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        payload(chat_template_kwargs=variables)

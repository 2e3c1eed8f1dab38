"""Tests of the input items of `/v1/responses`: calls and their results become messages of a chat."""

import pytest
from pydantic import ValidationError

from web.http.api_errors import ApiError, field_errors, invalid_value
from web.openai.chat_messages import MAX_TOOLS
from web.openai.responses_schema import ResponsesWithTools

HI = {"role": "user", "content": "hi"}


def a_call(number=0):
    return {"type": "function_call", "call_id": f"c{number}", "name": "look", "arguments": "{}"}


def body(**fields):
    return ResponsesWithTools.model_validate({"model": "m", "input": [HI]} | fields)


def messages_of(*items):
    return body(input=[*items]).payload()["messages"]


def a_function(name, **more):
    return {"type": "function", "name": name} | more


def shown(*names):
    """The functions as the model sees them."""
    return [{"type": "function", "function": {"name": name}} for name in names]


def a_namespace(name, *functions):
    return {"type": "namespace", "name": name, "description": "what", "tools": [*functions]}


AGENTS = a_namespace("agents", a_function("spawn"), a_function("stop"))
ROBOTS = a_namespace("robots", a_function("stop"))


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ()),
        ({"context_management": [], "truncation": "disabled", "include": []}, ()),
        ({"client_metadata": {"a": "b"}, "max_tool_calls": 5}, ("client_metadata", "max_tool_calls")),
        ({"text": {"verbosity": "low"}}, ("text.verbosity",)),
        ({"text": {"verbosity": "high", "format": {"type": "text"}}}, ("text.verbosity",)),
        ({"include": ["reasoning.encrypted_content", "web_search_call.action.sources"]}, ("include",)),
        (
            {"reasoning": {"effort": "low", "summary": "auto", "context": "all_turns"}},
            ("reasoning.summary", "reasoning.context"),
        ),
        ({"input": [HI | {"cache_control": {}}]}, ("messages.cache_control",)),
        ({"tools": [{"type": "web_search", "external_web_access": False}]}, ("tools.web_search",)),
        (
            {"tools": [{"type": "web_search_preview_2025_03_11"}, {"type": "mcp", "server_label": "x"}]},
            ("tools.web_search_preview", "tools.mcp"),
        ),
    ],
)
def test_fields_that_cannot_change_the_answer_are_accepted_and_named(fields, names):
    asked = body(**fields)
    assert asked.ignored == names
    assert not asked.payload().keys() & {"tools", "response_format", *fields} - {"input"}


@pytest.mark.parametrize(
    ("tools", "names"),
    [
        ([AGENTS], ["spawn", "stop"]),
        ([AGENTS, a_function("look"), {"type": "web_search"}], ["spawn", "stop", "look"]),
        ([AGENTS, ROBOTS], ["spawn", "agents__stop", "robots__stop"]),
        ([AGENTS, a_function("stop")], ["spawn", "agents__stop", "stop"]),
        ([a_namespace("n" * 60, a_function("stop")), a_function("stop")], [f"{'n' * 58}__stop", "stop"]),
        ([a_namespace("mcp.one", a_function("f")), a_function("f")], ["mcp_one__f", "f"]),
        ([a_namespace("empty")], None),
    ],
)
def test_functions_in_namespaces_are_functions_like_all_others(tools, names):
    assert body(tools=tools).payload().get("tools") == (shown(*names) if names else None)


@pytest.mark.parametrize(
    ("choice", "fields"),
    [
        (a_function("spawn"), {"tool_choice": shown("spawn")[0]}),
        (a_function("stop"), {"tool_choice": shown("stop")[0]}),
        (a_function("stop", namespace="agents"), {"tool_choice": shown("agents__stop")[0]}),
        ({"type": "allowed_tools", "mode": "auto", "tools": [a_function("spawn")]}, {"tools": shown("spawn")}),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [a_function("stop", namespace="agents"), {"type": "web_search"}],
            },
            {"tools": shown("agents__stop"), "tool_choice": "required"},
        ),
    ],
)
def test_a_choice_may_name_functions_in_namespaces_and_some_of_the_tools(choice, fields):
    tools = [AGENTS, a_function("stop"), {"type": "web_search"}]
    given = body(tools=tools, tool_choice=choice).payload()
    assert {"tools": shown("spawn", "agents__stop", "stop")} | fields == {
        name: given[name] for name in ("tools", "tool_choice") if name in given
    }


def test_a_call_of_a_function_in_a_namespace_comes_back_under_the_name_that_the_model_has_seen():
    calls = [a_call(0) | {"name": "stop", "namespace": "agents"}, a_call(1) | {"name": "stop", "namespace": None}]
    gone = a_call(2) | {"name": "look", "namespace": "gone"}
    told = body(input=[HI, *calls, gone], tools=[AGENTS, a_function("stop")]).payload()["messages"][1]
    assert [call["function"]["name"] for call in told["tool_calls"]] == ["agents__stop", "stop", "look"]
    assert all(call.keys() == {"id", "type", "function"} for call in told["tool_calls"])


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "invalid_value", "tool_choice"),
        (
            {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
            "unsupported_parameter",
            "tool_choice.type",
        ),
        (
            {
                "tools": [AGENTS, {"type": "web_search"}],
                "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
            },
            "invalid_value",
            "tool_choice",
        ),
        ({"tools": [{"type": "local_shell"}]}, "unsupported_parameter", "tools[0].type"),
        ({"tools": [{"type": "web_searches"}]}, "unsupported_parameter", "tools[0].type"),
        (
            {"tools": [a_namespace("n", {"type": "custom", "name": "f"})]},
            "unsupported_parameter",
            "tools[0].tools[0].type",
        ),
        ({"tools": [a_namespace("n", a_function("a b"))]}, "invalid_value", "tools[0].tools[0].name"),
        ({"tools": [a_namespace("", a_function("f"))]}, "invalid_value", "tools[0].name"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": "f"}]}, "invalid_value", "tools[0].tools"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": 5}]}, "invalid_value", "tools[0].tools"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "invalid_value", "tools[0].tools"),
        ({"tools": [a_namespace("n", a_function("f"), a_function("f"))]}, "invalid_value", "tools"),
        ({"tools": [AGENTS] * (MAX_TOOLS // 2 + 1)}, "invalid_value", "tools"),
        ({"tools": [AGENTS, ROBOTS], "tool_choice": a_function("stop")}, "invalid_value", "tool_choice.function.name"),
        (
            {"tools": [AGENTS], "tool_choice": a_function("spawn", namespace=3)},
            "invalid_value",
            "tool_choice.namespace",
        ),
        ({"tools": [AGENTS], "tool_choice": {"type": "function"}}, "invalid_value", "tool_choice.name"),
        ({"context_management": [{"type": "compaction"}]}, "unsupported_parameter", "context_management"),
        ({"truncation": "auto"}, "unsupported_parameter", "truncation"),
        ({"reasoning": {"context": "some"}}, "", "reasoning.context"),
    ],
)
def test_what_would_change_the_answer_and_cannot_be_served_is_refused_by_name(fields, code, param):
    with pytest.raises((ApiError, ValidationError)) as caught:
        body(**fields)
    error = caught.value
    found = error if isinstance(error, ApiError) else invalid_value(field_errors(error))
    assert (found.code, found.param) == (code or "invalid_value", param)


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


WHOLE = a_function("look", description="sees", parameters={"type": "object"}, strict=True)
BARE = {"description": None, "parameters": None, "strict": None}


@pytest.mark.parametrize(
    ("fields", "tools", "choice"),
    [
        ({"tools": [WHOLE], "tool_choice": "required"}, [WHOLE], "required"),
        ({"tools": [WHOLE]}, [WHOLE], "auto"),
        ({"tools": [WHOLE], "tool_choice": "none"}, [WHOLE], "none"),
        (
            {"tools": [WHOLE], "tool_choice": {"type": "function", "name": "look"}},
            [WHOLE],
            {"type": "function", "name": "look"},
        ),
        (
            {
                "tools": [WHOLE],
                "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [a_function("look")]},
            },
            [WHOLE],
            {"type": "allowed_tools", "mode": "required", "tools": [a_function("look")]},
        ),
        ({"tools": [{"type": "web_search"}, WHOLE]}, [WHOLE], "auto"),
        (
            {"tools": [AGENTS, ROBOTS, WHOLE]},
            [
                {"type": "namespace", "name": name, "tools": [a_function(own, **BARE) for own in names]}
                for name, names in (("agents", ("spawn", "stop")), ("robots", ("stop",)))
            ]
            + [WHOLE],
            "auto",
        ),
    ],
)
def test_a_response_object_repeats_the_tools_and_the_choice_as_they_were_sent(fields, tools, choice):
    form = body(**fields, parallel_tool_calls=False).form()
    assert (form["tools"], form["tool_choice"], form["parallel"]) == (tools, choice, False)


def test_of_tools_that_are_too_long_to_be_kept_a_response_object_repeats_the_names():
    long = [a_function(f"f{i}", description="x" * 1_000) for i in range(9)]
    assert body(tools=long).form()["tools"] == [a_function(f"f{i}", **BARE) for i in range(9)]


def test_a_request_without_tools_keeps_nothing_about_them():
    assert not {"tools", "tool_choice", "parallel"} & body(tools=[]).form().keys()

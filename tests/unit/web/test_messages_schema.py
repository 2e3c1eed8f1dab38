"""Tests which bodies Anthropic's routes accept, and what the engine gets of them."""

from typing import Any

import pytest
from pydantic import ValidationError

from web.anthropic.messages_schema import MessagesBody
from web.api.request_schema import MAX_STOPS
from web.http.api_errors import ApiError, field_errors, invalid_value
from web.openai.chat_messages import MAX_TOOLS

HI: dict[str, Any] = {"role": "user", "content": "hi"}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: dict[str, Any] = {"name": "f", "description": "what", "input_schema": SCHEMA}
FUNCTION = {"type": "function", "function": {"name": "f", "description": "what", "parameters": SCHEMA}}
USE: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"city": "Köln"}}
CALL = {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": '{"city":"Köln"}'}}
SEARCH: dict[str, Any] = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
SEARCH_CHOICE = {"type": "tool", "name": "web_search"}
CLEAR: dict[str, Any] = {"type": "clear_thinking_20251015", "keep": "all"}
CONTINUE = {"type": "continue", "previous_message_id": "msg_1"}
PAPER: dict[str, Any] = {
    "type": "document",
    "title": "Notes",
    "context": "of May",
    "source": {"type": "text", "media_type": "text/plain", "data": "It rains."},
}
LINKED = {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}}
PLACE = "messages[0].content[0]"
PNG: dict[str, Any] = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def body(**fields: Any) -> MessagesBody:
    return MessagesBody.model_validate({"max_tokens": 9, "messages": [HI]} | fields)


def payload(**fields: Any) -> dict[str, Any]:
    return body(**fields).own_chat().payload()


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content} | more


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def result(content: Any = "sunny", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content} | more


def test_the_engine_gets_the_sampling_fields_under_the_names_of_a_chat() -> None:
    given = payload(temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["END"], seed=3)
    named = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "stop": ["END"], "seed": 3, "parts": True}
    assert named.items() <= given.items()
    assert (body().own_chat().requested_max_tokens, payload()["temperature"]) == (9, 1.0)


@pytest.mark.parametrize("system", ["be brief", [text("be "), text("brief", cache_control={"type": "ephemeral"})]])
def test_the_system_text_precedes_the_messages(system: Any) -> None:
    assert payload(system=system)["messages"] == [{"role": "system", "content": "be brief"}, HI]


def test_calls_become_part_of_their_message_and_results_messages_of_their_own() -> None:
    thinking = [{"type": "thinking", "thinking": thought, "signature": ""} for thought in ("hm", "so")]
    redacted = {"type": "redacted_thinking", "data": "x"}
    asked = assistant(*thinking, redacted, text("I look."), USE)
    answered = user(result([text("sun"), text("ny")]), text("And "), text("tomorrow?"))
    assert payload(messages=[HI, asked, answered])["messages"] == [
        HI,
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm\n\nso", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "sunny"},
        {"role": "user", "content": "And tomorrow?"},
    ]


def test_earlier_reasoning_is_not_passed_on_to_an_upstream() -> None:
    asked = assistant({"type": "thinking", "thinking": "hm", "signature": ""}, USE)
    given = body(messages=[HI, asked, user(result())]).forwarded_chat().payload()
    assert given["messages"][1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}


def test_a_result_that_reports_an_error_says_so_to_the_model() -> None:
    told = payload(messages=[HI, assistant(USE), user(result("no network", is_error=True))])["messages"]
    assert told[-1]["content"] == "Error: no network"
    empty = {"type": "tool_result", "tool_use_id": "toolu_1"}
    assert payload(messages=[HI, assistant(USE), user(empty)])["messages"][-1]["content"] == ""


def test_messages_of_one_role_that_follow_each_other_are_one() -> None:
    mine = {"role": "assistant", "content": "one"}
    messages = [HI, user(text("there")), mine, assistant(USE), user(result()), HI]
    assert payload(messages=messages)["messages"] == [
        {"role": "user", "content": "hi\n\nthere"},
        {"role": "assistant", "content": "one", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "sunny"},
        HI,
    ]


@pytest.mark.parametrize(
    ("choice", "fields"),
    [
        (None, {"tools": [FUNCTION]}),
        ({"type": "auto"}, {"tools": [FUNCTION]}),
        ({"type": "any"}, {"tools": [FUNCTION], "tool_choice": "required"}),
        (
            {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
            {
                "tools": [FUNCTION],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
                "parallel_tool_calls": False,
            },
        ),
        ({"type": "none"}, {}),
    ],
)
def test_a_choice_among_the_tools_is_that_of_a_chat(choice: Any, fields: dict[str, Any]) -> None:
    names = ("tools", "tool_choice", "parallel_tool_calls")
    given = payload(tools=[TOOL], tool_choice=choice)
    assert {name: value for name, value in given.items() if name in names} == fields


def test_what_clients_send_beside_the_fields_that_count_changes_nothing() -> None:
    more = {"cache_control": {"type": "ephemeral"}, "type": "custom", "defer_loading": False, "strict": None}
    beside = {"metadata": {"user_id": "u"}, "service_tier": "auto", "mcp_servers": [], "container": None}
    given = payload(tools=[TOOL | more], tool_choice=None, thinking=None, seed=1, **beside)
    assert given == payload(tools=[TOOL], seed=1)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ()),
        ({"metadata": None, "mcp_servers": [], "context_management": None}, ()),
        ({"context_management": {}}, ("context_management",)),
        ({"context_management": {"edits": [CLEAR, CLEAR | {"keep": {"type": "all"}}]}}, ("context_management",)),
        ({"thread": {"type": "create"}}, ("thread",)),
        ({"diagnostics": {"previous_message_id": "msg_1"}, "speed": "fast"}, ("diagnostics", "speed")),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, ("thinking.budget_tokens",)),
        ({"system": [text("be brief", cache_control={"type": "ephemeral"})]}, ("cache_control",)),
        ({"tools": [TOOL, SEARCH, SEARCH | {"name": "again"}]}, ("tools.web_search",)),
        ({"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}, ("tools.code_execution",)),
    ],
)
def test_fields_that_cannot_change_the_answer_are_accepted_and_named(
    fields: dict[str, Any], names: tuple[str, ...]
) -> None:
    asked = body(seed=1, **fields)
    assert asked.ignored == names
    told = {name: given for name, given in asked.own_chat().payload().items() if name != "chat_template_kwargs"}
    tools = {"tools": [TOOL]} if TOOL in fields.get("tools", []) else {}
    assert told == payload(**tools, seed=1, system=fields.get("system"))


def test_a_request_may_have_as_many_tools_as_agents_have() -> None:
    tools = [TOOL | {"name": f"f{number}"} for number in range(MAX_TOOLS)]
    assert len(payload(tools=tools)["tools"]) == MAX_TOOLS >= 150


def test_a_document_that_is_a_text_is_part_of_the_message() -> None:
    parts = {"type": "document", "source": {"type": "content", "content": [text("sun"), text("ny")]}}
    asked = user(text("Read: "), PAPER, parts | {"citations": None}, text("Well?"))
    read = "Notes\n\nof May\n\nIt rains.\n\n"
    assert payload(messages=[asked])["messages"][0]["content"] == f"Read: {read}sunny\n\nWell?"
    told = payload(messages=[HI, assistant(USE), user(result([text("see "), PAPER]))])["messages"]
    assert told[-1]["content"] == f"see {read}"
    whole = {"type": "document", "source": {"type": "content", "content": "sunny"}}
    assert payload(messages=[user(whole)])["messages"][0]["content"] == "sunny\n\n"
    assert body(messages=[asked]).forwarded_chat().payload()["messages"][0]["content"].endswith("Well?")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"chat_template_kwargs": {"enable_thinking": True}}),
        ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"output_config": {"effort": "max"}}, {"reasoning_effort": "xhigh"}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}},
        ),
    ],
)
def test_thinking_effort_and_format_reach_the_template_and_the_grammar(
    fields: dict[str, Any], told: dict[str, Any]
) -> None:
    assert told.items() <= payload(**fields).items()


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"max_tokens": None}, "invalid_value", "max_tokens"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": "9"}, "invalid_value", "max_tokens"),
        ({"temperature": 9}, "invalid_value", "temperature"),
        ({"stop_sequences": ["x"] * (MAX_STOPS + 1)}, "invalid_value", "stop_sequences"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": "hi"}, "invalid_value", "messages"),
        ({"messages": ["hi"]}, "invalid_value", "messages[0]"),
        ({"messages": [{"role": "tool", "content": "hi"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [HI | {"name": "ann"}]}, "unsupported_parameter", "messages[0].name"),
        ({"messages": [HI | {"content": 3}]}, "invalid_value", "messages[0].content"),
        ({"messages": [HI | {"content": "a\0b"}]}, "invalid_value", "messages[0].content"),
        ({"messages": [user(text("hi"), {"text": "x"})]}, "invalid_value", "messages[0].content[1]"),
        ({"messages": [user({"type": "text", "text": 3})]}, "invalid_value", "messages[0].content[0].text"),
        ({"messages": [user({"type": "search_result"})]}, "unsupported_parameter", "messages[0].content[0].type"),
        ({"messages": [user(PNG)]}, "unsupported_parameter", "messages[0].content[0]"),
        ({"messages": [user(result([PNG]))]}, "unsupported_parameter", "messages[0].content[0].content[0].type"),
        ({"messages": [user(result() | {"tool_use_id": 3})]}, "invalid_value", "messages[0].content[0].tool_use_id"),
        ({"messages": [user(result(is_error="no"))]}, "invalid_value", "messages[0].content[0].is_error"),
        ({"messages": [assistant(USE | {"input": "{}"}), HI]}, "invalid_value", "messages[0].content[0].input"),
        ({"messages": [assistant(PNG), HI]}, "unsupported_parameter", "messages[0].content[0].type"),
        ({"messages": [assistant(*[USE] * (MAX_TOOLS + 1)), HI]}, "invalid_value", "messages[0].content"),
        ({"messages": [HI, assistant(text("Once"))]}, "unsupported_parameter", "messages"),
        ({"system": 3}, "invalid_value", "system"),
        ({"system": [PNG]}, "unsupported_parameter", "system[0].type"),
        ({"tools": [TOOL | {"type": "bash_20250124"}]}, "unsupported_parameter", "tools[0].type"),
        ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, "invalid_value", "tool_choice.type"),
        ({"tools": [SEARCH, TOOL], "tool_choice": SEARCH_CHOICE}, "invalid_value", "tool_choice.name"),
        (
            {"messages": [user(PAPER | {"source": {"type": "text", "data": 3}})]},
            "invalid_value",
            f"{PLACE}.source.data",
        ),
        (
            {"messages": [user(PAPER | {"source": PAPER["source"] | {"media_type": "text/html"}})]},
            "unsupported_parameter",
            f"{PLACE}.source.media_type",
        ),
        ({"messages": [user(LINKED)]}, "unsupported_parameter", f"{PLACE}.source.type"),
        ({"context_management": {"edits": 3}}, "invalid_value", "context_management.edits"),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "unsupported_parameter",
            "context_management.edits[0].type",
        ),
        (
            {"context_management": {"edits": [CLEAR | {"keep": {"type": "thinking_turns", "value": 1}}]}},
            "unsupported_parameter",
            "context_management.edits[0].keep",
        ),
        ({"thread": {"type": "fork"}}, "invalid_value", "thread.type"),
        ({"thread": CONTINUE}, "thread_not_found", "thread.previous_message_id"),
        ({"tools": [TOOL | {"name": "a b"}]}, "invalid_value", "tools[0].name"),
        ({"tools": [{"name": "f"}]}, "invalid_value", "tools[0].input_schema"),
        ({"tools": [TOOL | {"input_schema": {"type": "array"}}]}, "invalid_value", "tools[0].input_schema.type"),
        (
            {"tools": [TOOL | {"input_schema": {"not": {"type": "null"}}}]},
            "unsupported_parameter",
            "tools[0].input_schema",
        ),
        ({"tools": [TOOL | {"defer_loading": True}]}, "unsupported_parameter", "tools[0].defer_loading"),
        ({"tools": [TOOL, TOOL]}, "invalid_value", "tools"),
        ({"tools": [TOOL] * (MAX_TOOLS + 1)}, "invalid_value", "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "invalid_value", "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "required"}}, "invalid_value", "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "invalid_value", "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "invalid_value", "tool_choice.type"),
        ({"thinking": {"type": "sometimes"}}, "invalid_value", "thinking.type"),
        ({"output_config": {"format": {"type": "xml"}}}, "unsupported_parameter", "output_config.format.type"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"not": {"type": "null"}}}}},
            "unsupported_parameter",
            "output_config.format.schema",
        ),
        ({"mcp_servers": [{"url": "x"}]}, "unsupported_parameter", "mcp_servers"),
        ({"n": 2}, "unsupported_parameter", "n"),
    ],
)
def test_a_body_that_cannot_be_served_names_the_field(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises((ApiError, ValidationError)) as caught:
        payload(**fields)
    error = caught.value
    found = error if isinstance(error, ApiError) else invalid_value(field_errors(error))
    assert (found.code, found.param) == (code, param)


def test_an_error_quotes_the_value() -> None:
    with pytest.raises(ApiError, match=r"messages\[0\]\.role='robot' is not 'user' or 'assistant'"):
        payload(messages=[{"role": "robot", "content": "hi"}])


def test_images_and_documents_are_passed_on_to_an_upstream_in_the_form_of_a_chat() -> None:
    link = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    paper = {"type": "document", "title": "a.pdf", "source": PNG["source"] | {"media_type": "application/pdf"}}
    chat = body(messages=[user(text("look"), PNG, link, paper)], tools=[TOOL], thinking={"type": "adaptive"})
    given = chat.forwarded_chat().payload()
    assert given["messages"][0]["content"] == [
        text("look"),
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
    ]
    assert given["forward"] == {"tools": [FUNCTION]}

"""Tests of the fields that clients of vLLM send: which are accepted, what they become, and how faults are named."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.cpu_time import cpu_time_below
from web.http.api_errors import ApiError, field_errors
from web.openai.chat_schema import ChatWithTools, CompletionBody
from web.openai.responses_schema import ResponsesWithTools

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer", "default": None}}}


def chat(**body: Any) -> dict[str, Any]:
    """Return the payload of a chat with these fields, without its random seed."""
    return ChatWithTools.model_validate({"messages": HI, "seed": 1} | body).payload()


def fault_of(**body: Any) -> tuple[str, str]:
    """Return the name of the field that is at fault, and the message."""
    with pytest.raises((ApiError, ValidationError)) as caught:
        chat(**body)
    if isinstance(caught.value, ApiError):
        assert caught.value.code == "unsupported_parameter"
        return caught.value.param or "", caught.value.message
    first = field_errors(caught.value)[0]
    return first.param, first.message


def test_guidellms_request_is_accepted_as_it_is() -> None:
    body = ChatWithTools.model_validate(
        {
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "max_completion_tokens": 64,
            "stop": None,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        }
    )
    assert body.stream_options is not None
    assert body.stream_options.usage_chunks == "all"
    assert (body.payload()["ignore_eos"], body.requested_max_tokens) == (True, 64)


@pytest.mark.parametrize(
    ("options", "chunks"),
    [
        ({}, "none"),
        ({"continuous_usage_stats": True}, "none"),
        ({"include_usage": True}, "last"),
        ({"include_usage": True, "continuous_usage_stats": None}, "last"),
    ],
)
def test_running_token_counts_are_sent_only_beside_the_last_ones(options: dict[str, Any], chunks: str) -> None:
    body = ChatWithTools.model_validate({"messages": HI, "stream_options": options})
    assert body.stream_options is not None
    assert body.stream_options.usage_chunks == chunks


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 7}, {"top_k": 7}),
        ({"repetition_penalty": 1.2}, {"repeat_penalty": 1.2}),
        ({"repetition_penalty": 1.2, "repeat_penalty": 1.2}, {"repeat_penalty": 1.2}),
        ({"min_tokens": 3}, {"min_tokens": 3}),
        ({"ignore_eos": True}, {"ignore_eos": True}),
        ({"stop_token_ids": [3, 5]}, {"stop_token_ids": [3, 5]}),
        ({"skip_special_tokens": True}, {}),
        ({"spaces_between_special_tokens": False}, {}),
        ({"length_penalty": 1.0}, {}),
        ({"use_beam_search": False}, {}),
        ({"cache_salt": "abc"}, {}),
        ({"logit_bias": {"5": None, "6": 1}}, {"logit_bias": {"6": 1}}),
    ],
)
def test_a_sampling_field_of_vllm_becomes_one_of_our_own(given: dict[str, Any], kept: dict[str, Any]) -> None:
    assert chat(**given) == chat() | kept | {"asked": sorted({*chat()["asked"], *kept})}


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"length_penalty": 1.5}, "length_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"top_k": -2}, "top_k"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids[1]"),
        ({"repetition_penalty": 2.0, "repeat_penalty": 3.0}, ""),
    ],
)
def test_a_value_that_cannot_be_followed_is_refused_by_its_own_name(given: dict[str, Any], param: str) -> None:
    name, message = fault_of(**given)
    assert name == param
    assert next(iter(given)) in message


FORMATS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"guided_json": SCHEMA}, {"type": "json_schema", "json_schema": {"schema": SCHEMA}}),
    ({"guided_json": '{"type": "object"}'}, {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}),
    ({"guided_regex": "[ab]+"}, {"type": "regex", "regex": "[ab]+"}),
    ({"guided_choice": ["yes", "no"]}, {"type": "choice", "choice": ["yes", "no"]}),
    ({"guided_grammar": 'start: "a"'}, {"type": "grammar", "grammar": 'start: "a"'}),
    ({"structured_outputs": {"json": SCHEMA}}, {"type": "json_schema", "json_schema": {"schema": SCHEMA}}),
    ({"structured_outputs": {"regex": "a", "json": None, "whitespace_pattern": None}}, {"type": "regex", "regex": "a"}),
    ({"structured_outputs": {"json_object": True, "disable_any_whitespace": False}}, {"type": "json_object"}),
]


@pytest.mark.parametrize(("given", "response_format"), FORMATS)
def test_a_format_in_vllms_words_is_held_to_on_every_route(
    given: dict[str, Any], response_format: dict[str, Any]
) -> None:
    assert chat(**given)["response_format"] == response_format
    for body in (
        CompletionBody.model_validate({"prompt": "hi"} | given),
        ResponsesWithTools.model_validate({"input": "hi"} | given),
        ChatWithTools.model_validate({"messages": HI, "response_format": {"type": "text"}} | given),
    ):
        assert body.payload()["response_format"] == response_format


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"guided_json": "no schema"}, "guided_json"),
        ({"guided_json": "[" * 100_000}, "guided_json"),
        ({"guided_json": {"not": {"type": "null"}}}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"json": {"not": {"type": "null"}}}}, "structured_outputs.json"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}}, "structured_outputs."),
        ({"guided_regex": "a", "guided_choice": ["a"]}, ""),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, ""),
        ({"guided_json": SCHEMA, "response_format": {"type": "json_object"}}, ""),
    ],
)
def test_a_format_that_cannot_be_used_is_refused_by_its_own_name(given: dict[str, Any], param: str) -> None:
    name, message = fault_of(**given)
    assert name.startswith(param)
    assert next(iter(given)) in message


def test_a_schema_in_a_text_is_not_read_beyond_the_budget_of_a_body() -> None:
    with cpu_time_below(0.5):
        assert fault_of(guided_json='{"a":[' + "[],[]," * 150_000 + "[]]}")[0] == "guided_json"


@pytest.mark.parametrize(
    "nulls",
    [
        {"response_format": {"type": "json_object", "json_schema": None, "schema": None}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": None}}},
        {"stream_options": {"include_usage": None, "anything": None}},
        {"structured_outputs": {"regex": "a", "anything": None}},
        {"messages": [{"role": "user", "content": "hi", "name": None, "anything": None}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": None}]}]},
        {"messages": [*HI, {"role": "assistant", "content": "ho", "tool_calls": None, "audio": None}]},
    ],
)
def test_a_null_inside_an_object_of_a_request_counts_as_absent(nulls: dict[str, Any]) -> None:
    assert chat(**nulls) == chat(**{name: _without_nulls(given) for name, given in nulls.items()})


def test_a_null_in_a_schema_stays() -> None:
    assert chat(guided_json=SCHEMA)["response_format"]["json_schema"]["schema"] == SCHEMA
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    assert chat(response_format=form)["response_format"] == form


def _without_nulls(value: Any) -> Any:
    """Return the value without null fields, except in a schema."""
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: given if name == "schema" else _without_nulls(given) for name, given in value.items() if given is not None
    }

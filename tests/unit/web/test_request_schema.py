"""Tests which request bodies are accepted, and which error each invalid one gets."""

from collections.abc import Iterator
from typing import Any

import pytest

from shared.jobs.schema_keywords import unsupported_keyword
from web.api.body import validated
from web.api.request_schema import SubmitBody
from web.http.api_errors import ApiError, FieldError, quoted
from web.http.json_body import parse_json
from web.openai.chat_schema import ChatWithTools
from web.openai.responses_schema import ResponsesWithTools


def errors_of(body: Any) -> list[FieldError]:
    with pytest.raises(ApiError) as caught:
        validated(SubmitBody, body)
    return list(caught.value.invalid_fields)


def faults_of(**body: Any) -> dict[str, str]:
    return {item.param: item.message for item in errors_of({"prompt": "hi"} | body)}


def accepted(body: dict[str, Any]) -> SubmitBody:
    return validated(SubmitBody, body)


def test_a_request_with_only_a_prompt_gets_every_default_value() -> None:
    payload = accepted({"prompt": "hi"}).payload()
    assert 0 <= payload.pop("seed") < 2**31
    assert payload == {
        "prompt": "hi",
        "temperature": 0.8,
        "top_p": 0.95,
        "top_k": 40,
        "min_p": 0.05,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "asked": [],
    }


def test_the_fields_that_the_client_has_named_are_known_whatever_their_values() -> None:
    payload = accepted({"prompt": "hi", "temperature": 0.8, "seed": None, "stop": "END", "max_tokens": 4}).payload()
    assert payload["asked"] == ["stop", "temperature"]


def test_a_given_seed_is_kept_and_a_missing_one_is_drawn_at_random() -> None:
    assert accepted({"prompt": "hi", "seed": -7}).payload()["seed"] == -7
    drawn = {accepted({"prompt": "hi"}).payload()["seed"] for _ in range(8)}
    assert len(drawn) > 1


def test_an_unknown_field_is_refused_by_name() -> None:
    assert faults_of(colour="red") == {"colour": "unknown field 'colour'"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", "3"),
        ("max_tokens", True),
        ("temperature", -0.1),
        ("temperature", 5.1),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 2),
        ("repeat_penalty", 0),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("seed", 2**64),
        ("deadline_ms", 0),
        ("start_within_ms", 0),
        ("poll_grace_ms", -1),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"1": 101}),
        ("metadata", {f"k{i}": "v" for i in range(17)}),
        ("metadata", {"": "v"}),
        ("metadata", {"k": 1}),
        ("stop", ["x"] * 17),
        ("model", ""),
        ("prompt", ""),
        ("prompt", 7),
        ("prompt", "a\0b"),
        ("response_format", {"type": "yaml"}),
    ],
)
def test_an_invalid_value_is_refused_by_its_field_s_name(field: str, value: Any) -> None:
    assert [param.partition(".")[0] for param in faults_of(**{field: value})] == [field]


@pytest.mark.parametrize("priority", [True, "1", 1.0, None, 2, -2, [1]])
def test_a_priority_other_than_minus_one_zero_and_one_is_refused_with_its_value(priority: Any) -> None:
    assert faults_of(priority=priority)["priority"].startswith(f"priority={quoted(priority)}:")


def test_a_refused_number_is_quoted_in_the_message() -> None:
    assert faults_of(max_tokens=0)["max_tokens"].startswith("max_tokens=0:")


def test_a_field_inside_a_list_is_named_with_its_index() -> None:
    found = errors_of({"messages": [{"role": "user", "content": "hi"}, {"role": "parrot", "content": 3}]})
    assert [item.param for item in found] == ["messages[1].role", "messages[1].content"]


def test_all_faults_of_a_body_are_reported() -> None:
    assert set(faults_of(max_tokens=0, top_k=-1, colour=1)) == {"max_tokens", "top_k", "colour"}


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}])
def test_exactly_one_of_prompt_and_messages_is_required(body: dict[str, Any]) -> None:
    assert errors_of(body) == [FieldError("", "exactly one of prompt and messages is required")]


@pytest.mark.parametrize("body", [None, [], "text", 7])
def test_a_body_that_is_not_an_object_is_refused(body: Any) -> None:
    found = errors_of(body)
    assert "should be a JSON object" in found[0].message


def test_a_single_stop_string_becomes_a_list_of_one() -> None:
    assert accepted({"prompt": "hi", "stop": "\n"}).payload()["stop"] == ["\n"]


def test_a_json_schema_response_format_requires_a_schema() -> None:
    assert "response_format" in faults_of(response_format={"type": "json_schema"})
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    assert accepted({"prompt": "hi", "response_format": schema}).payload()["response_format"] == schema


def test_the_text_response_format_is_left_out_of_the_payload() -> None:
    assert "response_format" not in accepted({"prompt": "hi", "response_format": {"type": "text"}}).payload()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"  ",
        b"{",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b"\xff\xfe",
        b'{"a": "\xff"}',
        b"[" * 100_000,
        b'{"a":"\x00"}',
        b"9" * 100_000,
    ],
)
def test_a_body_that_is_not_json_is_an_invalid_json_error(data: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_json(data)
    assert (caught.value.code, caught.value.status) == ("invalid_json", 400)


def test_non_ascii_text_is_decoded_unchanged() -> None:
    assert parse_json('{"a": "žluť 漢字 😀"}'.encode()) == {"a": "žluť 漢字 😀"}


@pytest.mark.parametrize(
    "value",
    [
        {"type": "json_object", "schema": {"type": "object"}},
        {"type": "regex", "regex": "[a-c]+"},
        {"type": "grammar", "grammar": 'start: "a"'},
        {"type": "choice", "choice": ["yes", "no"]},
    ],
)
def test_the_native_route_accepts_more_response_formats(value: Any) -> None:
    assert accepted({"prompt": "hi", "response_format": value}).payload()["response_format"] == value


@pytest.mark.parametrize(
    "value",
    [
        {"type": "regex"},
        {"type": "regex", "regex": "a", "choice": ["a"]},
        {"type": "choice", "choice": []},
        {"type": "choice", "choice": ["a"] * 1_001},
        {"type": "text", "schema": {}},
        {"type": "grammar", "grammar": ""},
    ],
)
def test_a_response_format_has_the_field_of_its_type_and_no_other(value: Any) -> None:
    assert [param.partition(".")[0] for param in faults_of(response_format=value)] == ["response_format"]


@pytest.mark.parametrize(
    "read", [SubmitBody.model_validate, ChatWithTools.model_validate, ResponsesWithTools.model_validate]
)
def test_a_keyword_that_no_answer_can_be_held_to_is_unsupported(read: Any) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "array", "items": {"not": {"type": "null"}}}}}
    body: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    if read == ResponsesWithTools.model_validate:
        body = {"input": "hi", "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}}
    elif read == ChatWithTools.model_validate:
        body["messages"] = [{"role": "user", "content": "hi"}]
    else:
        body["prompt"] = "hi"
    with pytest.raises(ApiError, match=r"the keyword properties\.x\.items\.not is not supported") as caught:
        read(body)
    assert caught.value.code == "unsupported_parameter"
    assert caught.value.param in {"response_format", "text.format"}


class CountedParts(list[dict[str, str]]):
    """Counts how many of its parts are read."""

    read = 0

    def __iter__(self) -> Iterator[dict[str, str]]:
        for part in super().__iter__():
            self.read += 1
            yield part


def test_of_a_schema_with_very_many_parts_only_the_first_part_is_read() -> None:
    parts = CountedParts([{"type": "null"}] * 300_000)
    assert unsupported_keyword({"anyOf": parts}) is None
    assert 0 < parts.read <= 20_000

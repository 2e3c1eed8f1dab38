"""Body → validated request, or what is wrong with it."""

from typing import Any

import pytest

from web.api.request_schema import SubmitBody, read_submit
from web.http.api_errors import ApiError, FieldError
from web.http.json_body import parse_json


def wrong(**body: Any) -> dict[str, str]:
    found = read_submit({"prompt": "hi"} | body)
    assert isinstance(found, list), f"taken: {found}"
    return {item.param: item.message for item in found}


def taken(body: dict[str, Any]) -> SubmitBody:
    found = read_submit(body)
    assert isinstance(found, SubmitBody), found
    return found


def test_a_prompt_alone_is_a_request_with_every_default_written_out() -> None:
    payload = taken({"prompt": "hi"}).payload()
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
    }


def test_a_named_seed_is_kept_and_an_unnamed_one_drawn_anew() -> None:
    assert taken({"prompt": "hi", "seed": -7}).payload()["seed"] == -7
    drawn = {taken({"prompt": "hi"}).payload()["seed"] for _ in range(8)}
    assert len(drawn) > 1


def test_an_unknown_field_is_named() -> None:
    assert wrong(colour="red") == {"colour": "unknown field 'colour'"}


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
def test_a_value_that_does_not_fit_is_refused_by_its_field_s_name(field: str, value: Any) -> None:
    assert [param.partition(".")[0] for param in wrong(**{field: value})] == [field]


def test_a_refused_number_is_quoted() -> None:
    assert wrong(max_tokens=0)["max_tokens"].startswith("max_tokens=0:")


def test_a_place_inside_a_list_is_named_as_people_write_it() -> None:
    found = read_submit({"messages": [{"role": "user", "content": "hi"}, {"role": "parrot", "content": 3}]})
    assert isinstance(found, list)
    assert [item.param for item in found] == ["messages[1].role", "messages[1].content"]


def test_several_faults_are_all_told() -> None:
    assert set(wrong(max_tokens=0, top_k=-1, colour=1)) == {"max_tokens", "top_k", "colour"}


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}])
def test_exactly_one_of_prompt_and_messages_is_needed(body: dict[str, Any]) -> None:
    assert read_submit(body) == [FieldError("", "exactly one of prompt and messages is needed")]


@pytest.mark.parametrize("body", [None, [], "text", 7])
def test_a_body_that_is_no_object_is_refused(body: Any) -> None:
    found = read_submit(body)
    assert isinstance(found, list)
    assert "should be a JSON object" in found[0].message


def test_one_stop_string_is_a_list_of_one() -> None:
    assert taken({"prompt": "hi", "stop": "\n"}).payload()["stop"] == ["\n"]


def test_a_json_schema_needs_a_schema() -> None:
    assert "response_format" in wrong(response_format={"type": "json_schema"})
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    assert taken({"prompt": "hi", "response_format": schema}).payload()["response_format"] == schema


def test_free_text_is_no_response_format_at_all() -> None:
    assert "response_format" not in taken({"prompt": "hi", "response_format": {"type": "text"}}).payload()


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
def test_what_is_no_json_is_told_so_and_harms_nobody(data: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_json(data)
    assert (caught.value.code, caught.value.status) == ("invalid_json", 400)


def test_texts_of_all_tongues_come_through() -> None:
    assert parse_json('{"a": "žluť 漢字 😀"}'.encode()) == {"a": "žluť 漢字 😀"}

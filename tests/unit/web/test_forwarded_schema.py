"""Tests of the bodies that are passed on to an upstream: what is read of them, and what is passed on."""

from typing import Any

import pytest

from web.http.api_errors import ApiError
from web.openai.forwarded_schema import read_forwarded

CHAT = {"messages": [{"role": "user", "content": "hello"}]}


def test_penstocks_own_fields_are_read_and_all_others_are_passed_on() -> None:
    more = {"tools": [{"type": "function"}], "temperature": 9, "unheard_of": {"x": [None]}, "max_completion_tokens": 8}
    own = {
        "model": "m",
        "stream": True,
        "deadline_ms": 5,
        "supersede_key": "k",
        "degrade": False,
        "n": 1,
        "priority": -1,
    }
    body = read_forwarded(CHAT | more | own | {"return_ticket": "t"}, chat=True)
    assert body.payload() == CHAT | {"forward": more}
    assert (body.requested_max_tokens, body.deadline_ms, body.stream, body.priority) == (8, 5, True, -1)


def test_what_our_own_engine_would_refuse_is_passed_on_whole() -> None:
    more = {"skip_special_tokens": False, "min_tokens": 4, "guided_json": {"not": {}}, "top_k": -1, "logit_bias": None}
    options = {"include_usage": True, "continuous_usage_stats": True, "unheard_of": 1}
    body = read_forwarded(CHAT | more | {"stream_options": options}, chat=True)
    assert body.payload() == CHAT | {"forward": more}
    assert body.stream_options is not None
    assert body.stream_options.usage_chunks == "all"


def test_a_null_field_counts_as_absent() -> None:
    body = read_forwarded(CHAT | {"priority": None, "degrade": None, "private": None, "n": None}, chat=True)
    assert (body.payload(), body.priority, body.may_be_cut) == (CHAT | {"forward": {}}, 0, True)


@pytest.mark.parametrize(
    ("more", "may_be_cut"),
    [
        ({}, True),
        ({"degrade": False}, False),
        ({"tools": []}, False),
        ({"response_format": {}}, False),
        ({"structured_outputs": {"regex": "a"}}, False),
    ],
)
def test_an_answer_with_a_format_or_tools_is_never_cut(more: dict[str, object], may_be_cut: bool) -> None:
    assert read_forwarded(CHAT | more, chat=True).may_be_cut is may_be_cut


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        ({"prompt": "x", "echo": True}, {"prompt": "x", "forward": {"echo": True}}),
        ({"prompt": ["x"], "n": 1}, {"prompt": "x", "forward": {}}),
        ({"prompt": "x", "n": 3, "best_of": 3}, {"prompts": ["x"], "n": 3, "forward": {"best_of": 3}}),
        ({"prompt": ["x", "y"]}, {"prompts": ["x", "y"], "n": 2, "forward": {}}),
        ({"prompt": [7, 8]}, {"prompts": [[7, 8]], "forward": {}}),
        ({"prompt": [[7, 8], "x"], "n": 2}, {"prompts": [[7, 8], "x"], "n": 4, "forward": {}}),
        ({"prompt": ["x"] * 16, "best_of": None}, {"prompts": ["x"] * 16, "n": 16, "forward": {"best_of": None}}),
    ],
)
def test_a_completion_has_prompts_and_a_number_of_answers_to_each(
    body: dict[str, Any], payload: dict[str, Any]
) -> None:
    read = read_forwarded(body, chat=False)
    assert (read.payload(), read.candidates) == (payload, payload.get("n", 1))


def test_a_chat_with_several_answers_is_one_that_workers_of_earlier_versions_reject() -> None:
    assert read_forwarded(CHAT | {"n": 3}, chat=True).payload() == CHAT | {"n": 3, "prompts": [], "forward": {}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        *(({"prompt": prompt}, "prompt") for prompt in ("", None, [], [""], 3, [[]], [["x"]], "a\0", ["x"] * 17)),
        *(({"prompt": "x", "n": n}, "n") for n in (0, 17, True, "2", 2.5)),
        *(({"prompt": "x", "n": n, "best_of": best}, "best_of") for n, best in ((1, 2), (3, 2), (2, 3))),
        ({"prompt": ["x"] * 9, "n": 2}, None),
        ({"prompt": "x", "num_return_sequences": 2}, "num_return_sequences"),
    ],
    ids=str,
)
def test_prompts_and_numbers_of_answers_that_no_upstream_is_asked_for_are_named(
    body: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(ApiError) as caught:
        read_forwarded(body, chat=False)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("given", "length"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 4}, 4),
        ({"n_predict": 20}, 20),
        ({"max_new_tokens": 20, "n_predict": 30}, 20),
        ({"max_tokens": 5, "n_predict": 225}, 5),
        ({"n_predict": -1}, None),
        ({"num_predict": "20"}, None),
        ({"n_predict": True}, None),
    ],
)
def test_a_length_under_another_servers_name_is_the_length_only_if_there_is_no_other(
    given: dict[str, Any], length: int | None
) -> None:
    assert read_forwarded(CHAT | given, chat=True).requested_max_tokens == length

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


def test_a_completion_needs_one_prompt() -> None:
    assert read_forwarded({"prompt": "x", "echo": True}, chat=False).payload() == {
        "prompt": "x",
        "forward": {"echo": True},
    }
    for prompt in ("", None, ["x"], 3):
        with pytest.raises(ApiError) as caught:
            read_forwarded({"prompt": prompt}, chat=False)
        assert caught.value.param == "prompt"


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

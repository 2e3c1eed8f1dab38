"""Tests how an answer is put together from the chunks of a stream, and which chunks are refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shared.answer_parts import ARGUMENTS, CALL, END, REASONING, read_parts, without_marks
from workers.upstream.answer import Answer
from workers.upstream.pieces import AnswerInvalid
from workers.upstream.sse import EventDecoder, EventTooLong


def chunk(delta: Any, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta} | choice]}


@given(some.text(), some.lists(some.integers(0, 60)))
def test_a_text_arrives_whole_wherever_it_is_cut_even_in_the_middle_of_a_character(text: str, cuts: list[int]) -> None:
    halves = text.encode("utf-16-le", "surrogatepass")
    units = [halves[i : i + 2].decode("utf-16-le", "surrogatepass") for i in range(0, len(halves), 2)]
    answer, pieces, start = Answer("chat", 999), [], 0
    for cut in [*sorted(cuts), len(units)]:
        pieces.append(answer.add_chunk(chunk({"content": "".join(units[start:cut])})))
        start = max(start, cut)
    expected = without_marks(text)
    assert "".join(piece or "" for piece in pieces) == expected
    assert answer.text == expected


def test_marks_that_would_be_read_as_a_call_of_a_tool_are_replaced() -> None:
    answer = Answer("chat", 16)
    for mark in (CALL, ARGUMENTS, REASONING, END):
        answer.add_chunk(chunk({"content": f"a{mark}"}))
    assert answer.text == "a\ufffd" * 4
    assert read_parts(answer.text).calls == []


def test_half_of_a_character_that_stays_alone_is_replaced() -> None:
    answer = Answer("chat", 16)
    assert answer.add_chunk(chunk({"content": "a\ud83d"})) == "a"
    assert answer.add_chunk(chunk({"content": "b\ude00"})) == "\ufffdb\ufffd"


def test_a_call_of_a_tool_without_an_index_is_a_call_of_its_own() -> None:
    answer = Answer("chat", 16)
    for name in ("a", "b"):
        answer.add_chunk(chunk({"tool_calls": [{"id": name, "function": {"name": name, "arguments": "{}"}}]}))
    assert [call["id"] for call in answer.extra()["upstream"]["tool_calls"]] == ["a", "b"]


def test_a_role_or_an_empty_text_is_no_part_of_the_answer() -> None:
    answer = Answer("chat", 16)
    assert answer.add_chunk(chunk({"role": "assistant", "content": ""})) is None
    assert answer.add_chunk(chunk({}, finish_reason="stop")) is None
    assert (answer.chunks, answer.finish_reason, answer.extra()) == (0, "stop", {})


@pytest.mark.parametrize(
    "value",
    [
        [],
        "text",
        {"choices": 3},
        {"choices": [{"index": 1, "delta": {}}]},
        chunk({"tool_calls": ["x"]}),
        chunk({"tool_calls": [{"index": -1}]}),
        chunk({"tool_calls": [{"index": 10**9}]}),
        chunk({"content": "x" * (9 << 20)}),
    ],
)
def test_what_is_no_chunk_is_refused(value: Any) -> None:
    with pytest.raises(AnswerInvalid):
        Answer("chat", 16).add_chunk(value)


@pytest.mark.parametrize("usage", [None, {}, [], {"prompt_tokens": "many", "completion_tokens": -1}])
def test_counts_that_are_no_numbers_do_not_replace_what_was_counted_here(usage: Any) -> None:
    answer = Answer("chat", 16)
    answer.add_chunk(chunk({"content": "a"}))
    answer.add_chunk({"choices": [], "usage": usage})
    assert (answer.counts.prompt, answer.completion_tokens) == (None, 1)


@pytest.mark.parametrize("value", [{}, {"choices": None, "usage": {"completion_tokens": 3}}, {"type": "ping"}])
def test_an_object_without_choices_is_no_part_of_the_answer(value: Any) -> None:
    assert Answer("chat", 16).add_chunk(value) is None


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("stop", "stop"),
        ("eos_token", "stop"),
        ("end_turn", "stop"),
        ("STOP", "stop"),
        ("COMPLETE", "stop"),
        ("stop_sequence", "stop"),
        ("tool_calls", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("MAX_TOKENS", "length"),
        ("model_length", "length"),
        ("SAFETY", "content_filter"),
        ("refusal", "content_filter"),
        ("x" * 99, "stop"),
        ("a\nb", "stop"),
        ({"type": "stop"}, ""),
    ],
)
def test_a_finish_reason_is_one_of_openais_api_whatever_the_server_calls_it(reason: Any, shown: str) -> None:
    answer = Answer("chat", 16)
    answer.add_chunk(chunk({"content": "a"}, finish_reason=reason))
    assert answer.finish_reason == shown


@pytest.mark.parametrize("reason", ["tool_calls", "stop", "tool_use", "function_call", "end_turn", "COMPLETE"])
def test_a_complete_answer_with_calls_ends_with_tool_calls(reason: str) -> None:
    for whole in (False, True):
        call = {"tool_calls": [{"id": "a", "function": {"name": "read", "arguments": "{}"}}]}
        answer = Answer("chat", 16)
        choice = {"index": 0, "message" if whole else "delta": call, "finish_reason": reason}
        (answer.add_whole if whole else answer.add_chunk)({"choices": [choice]})
        assert answer.finish_reason == "tool_calls"


def test_an_answer_that_was_cut_in_a_call_ends_with_length() -> None:
    answer = Answer("chat", 16)
    call = {"tool_calls": [{"index": 0, "function": {"name": "read", "arguments": '{"a'}}]}
    answer.add_chunk(chunk(call, finish_reason="max_tokens"))
    assert answer.finish_reason == "length"


@pytest.mark.parametrize("reason", ["abort", "error", "cancelled"])
def test_an_answer_that_the_upstream_gave_up_is_no_answer(reason: str) -> None:
    with pytest.raises(AnswerInvalid, match=reason):
        Answer("chat", 16).add_chunk(chunk({}, finish_reason=reason))


def test_half_of_a_character_in_a_call_of_a_tool_can_be_stored_as_utf_8() -> None:
    answer = Answer("chat", 16)
    for piece in ("\ud83d", "\ude00", "\ud83d"):
        answer.add_chunk(chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": piece}}]}))
    answer.add_chunk(chunk({"reasoning": "é\udc00"}))
    extra = answer.extra()["upstream"]
    assert extra["tool_calls"][0]["function"]["arguments"] == "\U0001f600\ufffd"
    assert json.dumps(extra, ensure_ascii=False).encode()


@given(
    some.lists(some.text(some.characters(exclude_characters="\r\n")), max_size=5), some.integers(1, 7), some.booleans()
)
def test_events_are_the_same_however_their_bytes_arrive(texts: list[str], step: int, with_cr: bool) -> None:
    end = b"\r\n" if with_cr else b"\n"
    sent = b": a comment" + end + end
    for text in texts:
        sent += b"event: x" + end + b"data: " + json.dumps(text).encode() + end + end
    decoder = EventDecoder()
    events = [event for i in range(0, len(sent), step) for event in decoder.feed(sent[i : i + step])]
    assert [json.loads(event) for event in events + decoder.finish()] == texts


def test_counts_stay_if_a_later_chunk_has_none() -> None:
    answer = Answer("chat", 16)
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 5}}
    answer.add_chunk(chunk({"content": "a"}) | {"usage": usage})
    for rest in ({}, {"usage": None}, {"usage": {}}, {"usage": {"completion_tokens": 0}}):
        answer.add_chunk(chunk({}) | rest)
        assert (answer.counts.prompt, answer.counts.cached, answer.counts.completion) == (9, 5, 1)


@pytest.mark.parametrize("part", [b"x" * 60_000, b"data:x\n" * 10_000, b"error:{\n" * 10_000])
def test_an_event_that_never_ends_is_refused(part: bytes) -> None:
    with pytest.raises(EventTooLong):
        [*map(EventDecoder().feed, [part] * 18)]

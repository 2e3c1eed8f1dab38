"""Tests that reasoning and calls of tools become parts of an answer's text, in the order in which they arrive."""

import json
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shared.answer_parts import ARGUMENTS, CALL, END, REASONING, Call, Part, ordered_parts, read_parts, without_marks
from workers.upstream.answer import Answer
from workers.upstream.pieces import AnswerInvalid


def chunk(delta: Any, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta} | choice]}


def call(index: int, name: str = "", arguments: str = "") -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"name": name, "arguments": arguments}}]}


def call_chunk(index: int, name: str = "", arguments: str = "") -> dict[str, Any]:
    return chunk(call(index, name, arguments))


def answer_of(*deltas: Any, finish_reason: str = "stop", waits: bool = False) -> Answer:
    """Return the answer with these parts. The text shown while it arrives must be the beginning of the whole text.

    Unless `waits`, all is shown except the end of the last part.
    """
    answer = Answer("chat", 999, has_parts=True)
    shown = "".join(answer.add_chunk(chunk(delta)) or "" for delta in ({"role": "assistant"}, *deltas))
    answer.add_chunk(chunk({}, finish_reason=finish_reason))
    assert answer.text.startswith(shown)
    assert waits or answer.text[len(shown) :].strip("\ufffd" + ARGUMENTS + END) == ""
    assert answer.extra() == {}
    return answer


def test_reasoning_content_and_calls_keep_their_order() -> None:
    deltas = [
        *({"reasoning_content": piece} for piece in ("I ", "look.")),
        {"content": "Let me "},
        {"content": "see."},
        call(0, "weather"),
        call(0, arguments='{"a":'),
        call(0, arguments="1}"),
        call(1, "time", "{}"),
        {"reasoning": "Done."},
    ]
    assert ordered_parts(answer_of(*deltas).text) == [
        Part("reasoning", "I look."),
        Part("content", "Let me see."),
        Part("call", "weather", '{"a":1}'),
        Part("call", "time", "{}"),
        Part("reasoning", "Done."),
    ]


def test_a_server_that_names_its_reasoning_twice_has_reasoned_once() -> None:
    assert read_parts(answer_of({"reasoning_content": "hm", "reasoning": "hm"}).text).reasoning == "hm"


def test_a_refusal_is_what_the_model_says() -> None:
    assert read_parts(answer_of({"refusal": "I may "}, {"refusal": "not."}).text).content == "I may not."


def test_a_call_without_arguments_is_a_call() -> None:
    assert read_parts(answer_of(call(0, "now")).text).calls == [Call("now", "")]
    # Until the answer ends, its arguments may still come.
    assert ordered_parts(answer_of(call(0, "now"), {"content": "then"}, waits=True).text) == [
        Part("call", "now", ""),
        Part("content", "then"),
    ]


def test_calls_without_an_index_are_calls_of_their_own() -> None:
    whole = [{"function": {"name": name, "arguments": "{}"}} for name in ("a", "b")]
    assert read_parts(answer_of({"tool_calls": whole}).text).calls == [Call("a", "{}"), Call("b", "{}")]


def test_a_complete_answer_ends_its_last_part_and_a_cut_one_does_not() -> None:
    assert answer_of(call(0, "a", "{}"), finish_reason="tool_calls").text.endswith(END)
    assert not answer_of(call(0, "a", '{"b'), finish_reason="length").text.endswith(END)
    at_once = [call(0, "a", "{"), call(1, "b", "{")]
    assert answer_of(*at_once, waits=True).text.endswith(END)
    assert not answer_of(*at_once, finish_reason="length", waits=True).text.endswith(END)


def test_a_call_is_shown_at_once_if_the_call_before_it_is_complete() -> None:
    answer = Answer("chat", 16, has_parts=True)
    answer.add_chunk(call_chunk(0, "a", '{"x":'))
    answer.add_chunk(call_chunk(0, arguments="1}"))
    assert answer.add_chunk(call_chunk(1, "b", "{")) == END + CALL + "b" + ARGUMENTS + "{"


NAMES = [call(0, "a"), call(1, "b")]
HALVES = [call(0, arguments='{"x":'), call(1, arguments='{"y":'), call(0, arguments="1}"), call(1, arguments="2}")]


@pytest.mark.parametrize(
    "deltas",
    [
        [*NAMES, *HALVES],
        [*NAMES, *HALVES[::2], *HALVES[1::2]],
        [*NAMES, *HALVES[1::2], *HALVES[::2]],
        [call(0, "a", '{"x":'), call(1, "b", '{"y":'), *HALVES[2:]],
        [{"tool_calls": [*NAMES[0]["tool_calls"], *NAMES[1]["tool_calls"]]}, *HALVES],
    ],
)
def test_calls_that_arrive_at_once_are_divided_by_their_index(deltas: list[Any]) -> None:
    for content in ([], [{"content": "Wait."}]):
        text = answer_of(*deltas[:3], *content, *deltas[3:], finish_reason="tool_calls", waits=True).text
        assert read_parts(text).calls == [Call("a", '{"x":1}'), Call("b", '{"y":2}')]
        assert read_parts(text).content == "".join(one["content"] for one in content)


@given(
    some.lists(some.dictionaries(some.text(max_size=3), some.text(max_size=5), max_size=2), max_size=3), some.randoms()
)
def test_pieces_of_calls_text_and_reasoning_may_arrive_in_any_order(arguments: list[Any], random: Random) -> None:
    wholes = [json.dumps(one, ensure_ascii=random.random() < 0.5) for one in arguments]
    pieces: list[list[Any]] = [[call(i, f"f{i}")] for i in range(len(wholes))]
    for i, whole in enumerate(wholes):
        cuts = sorted({0, len(whole), *(random.randrange(len(whole)) for _ in range(3))})
        pieces[i] += [call(i, arguments=whole[begin:end]) for begin, end in pairwise(cuts)]
    pieces += [[{"content": "I "}, {"content": "say."}], [{"reasoning": "I "}, {"reasoning": "see."}]]
    order = [i for i, of_part in enumerate(pieces) for _ in of_part]
    random.shuffle(order)
    said = read_parts(answer_of(*(pieces[i].pop(0) for i in order), waits=True).text)
    expected = [(f"f{i}", without_marks(one)) for i, one in enumerate(wholes)]
    assert sorted((one.name, one.arguments) for one in said.calls) == expected
    assert (said.content, said.reasoning) == ("I say.", "I see.")


def test_a_piece_of_an_earlier_call_is_refused_but_a_blank_is_not() -> None:
    begun = [call(0, "a", "{}"), call(1, "b", "{")]
    assert (
        read_parts(answer_of(*begun, call(0, arguments="\n"), call(1, arguments="}")).text).calls[1].arguments == "{}"
    )
    with pytest.raises(AnswerInvalid, match="went back to an earlier call"):
        answer_of(*begun, call(0, arguments="}"))


@pytest.mark.parametrize("piece", ["x", {"index": -1}, {"index": 10**9}])
def test_what_is_no_call_is_refused(piece: Any) -> None:
    with pytest.raises(AnswerInvalid, match="a tool call"):
        answer_of({"tool_calls": [piece]})


@given(some.lists(some.sampled_from(["\ud83d", "\ude00", "a", CALL, END, REASONING]), max_size=6))
def test_what_the_upstream_writes_has_no_marks_and_no_halves_of_characters(pieces: list[str]) -> None:
    whole = "".join(pieces).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    for mark in (CALL, END, REASONING):
        whole = whole.replace(mark, "\ufffd")
    deltas = [*({"reasoning": piece} for piece in pieces), *(call(0, "f", piece) for piece in pieces)]
    parts = read_parts(answer_of(*deltas, finish_reason="tool_calls").text)
    assert parts.reasoning == whole
    assert parts.calls == ([Call("f", whole)] if pieces else [])
    assert parts.content == ""


def test_reasoning_tokens_are_those_that_the_upstream_counts() -> None:
    answer = Answer("chat", 16, has_parts=True)
    usage = {"prompt_tokens": 3, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}
    answer.add_chunk({"choices": [], "usage": usage})
    assert answer.extra() == {"reasoning_tokens": 4}

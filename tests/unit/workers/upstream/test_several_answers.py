"""Tests of the choices of one answer: how the chunks and counts of an upstream are divided among them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shared.answer_parts import Call, without_marks
from shared.candidates import (
    CANDIDATE,
    ENDED,
    Candidate,
    CandidateReader,
    read_candidates,
    without_candidate_marks,
)
from shared.jobs.job import JobView
from web.api.candidates import candidate_form, candidates_of
from web.openai.chat_answers import answer_format, parts_of
from workers.upstream.answer import MAX_ANSWER_BYTES, Answer
from workers.upstream.pieces import AnswerInvalid, ChoicesMissing

USAGE = {"prompt_tokens": 7, "completion_tokens": 9}


def piece(index: Any, content: str = "", **choice: Any) -> dict[str, Any]:
    return {"index": index, "delta": {"content": content}} | choice


def add(answer: Answer, *choices: dict[str, Any], **response: Any) -> str | None:
    return answer.add_chunk({"choices": list(choices)} | response)


def texts(answer: Answer, n: int) -> list[tuple[str, str]]:
    return [(each.text, each.reason) for each in read_candidates(answer.text, n)]


@given(some.lists(some.tuples(some.integers(0, 3), some.text(max_size=5)), max_size=30), some.booleans())
def test_the_choices_of_a_stream_are_told_apart_however_they_interleave(
    pieces: list[tuple[int, str]], has_parts: bool
) -> None:
    answer, reader, shown, reported = Answer("chat", 99, n=4, has_parts=has_parts), CandidateReader(), [""] * 4, 0
    whole = ["".join(text for index, text in pieces if index == at) for at in range(4)]
    for index, text in pieces:
        for delta in reader.feed(add(answer, piece(index, text)) or ""):
            shown[delta.index] += delta.text
        reported, before = answer.reported, reported
        assert reported >= before
    for index in (2, 0, 3, 1):
        reader.feed(add(answer, piece(index, finish_reason="stop")) or "")
    assert reader.ended == 4
    halves = [text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") for text in whole]
    expected = [without_candidate_marks(without_marks(text)) for text in halves]
    assert shown == expected
    assert read_candidates(answer.text, 4) == [Candidate(at, text, "stop") for at, text in enumerate(expected)]


@pytest.mark.parametrize("mark", [CANDIDATE, ENDED, f"{CANDIDATE}1", f"{ENDED}s"])
def test_a_mark_in_a_text_moves_nothing_to_another_choice(mark: str) -> None:
    answer = Answer("chat", 99, n=2)
    add(answer, piece(0, f"a{mark}b", finish_reason="stop"), piece(1, "c", finish_reason="stop"))
    assert texts(answer, 2) == [(f"a{without_candidate_marks(mark)}b", "stop"), ("c", "stop")]


@pytest.mark.parametrize(
    ("indexes", "found"),
    [
        ([1, 0], ["b", "a"]),
        ([None, None], ["a", "b"]),
        ([0, 0], ["a", "b"]),
        (["0", "1"], ["a", "b"]),
        ([0, 1, 2], ["a", "b"]),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
def test_choices_are_read_by_their_index_and_without_one_by_their_place(
    indexes: list[Any], found: list[str], streams: bool
) -> None:
    answer = Answer("completion", 99, n=2)
    choices = [{"index": at, "text": text, "finish_reason": "stop"} for at, text in zip(indexes, "abc", strict=False)]
    (answer.add_chunk if streams else answer.add_whole)({"choices": choices})
    assert texts(answer, 2) == [(text, "stop") for text in found]


def test_a_choice_that_was_not_asked_for_is_no_answer() -> None:
    with pytest.raises(AnswerInvalid, match="without one that was asked for"):
        add(Answer("chat", 99, n=2), piece(2, "a"))


@pytest.mark.parametrize("given", [[0], [1], [0, 2]])
def test_fewer_choices_than_were_asked_for_are_never_passed_off_as_all(given: list[int]) -> None:
    streamed, whole = Answer("chat", 99, n=3), Answer("chat", 99, n=3)
    for index in given:
        add(streamed, piece(index, "a", finish_reason="stop"))
    message = f"gave {len(given)} of the 3 answers"
    with pytest.raises(ChoicesMissing, match=message):
        streamed.end("stop")
    with pytest.raises(ChoicesMissing, match=message):
        whole.add_whole({"choices": [{"index": index, "message": {"content": "a"}} for index in given]})
    assert (streamed.finish_reason, whole.finish_reason) == ("", "")
    with pytest.raises(AnswerInvalid, match="without an answer"):
        Answer("chat", 99, n=3).end("stop")


def test_a_choice_may_be_empty_if_the_upstream_has_ended_it() -> None:
    answer = Answer("chat", 99, n=2)
    add(answer, piece(0, finish_reason="stop"))
    add(answer, piece(1, "a"))
    answer.end("stop")
    assert texts(answer, 2) == [("", "stop"), ("a", "stop")]


def test_each_choice_has_its_own_finish_reason_and_the_job_that_of_the_longest() -> None:
    answer = Answer("chat", 99, n=4, has_parts=True)
    call = {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "read", "arguments": "{}"}}]}
    add(answer, piece(0, "a", finish_reason="end_turn"), piece(1, delta=call, finish_reason="stop"))
    add(answer, piece(2, "c", finish_reason="SAFETY"))
    assert answer.finish_reason == ""
    add(answer, piece(3, "d", finish_reason="max_tokens"))
    assert [reason for _, reason in texts(answer, 4)] == ["stop", "tool_calls", "content_filter", "length"]
    assert answer.finish_reason == "length"


def test_each_choice_ends_one_chunk_after_its_length_while_the_others_continue() -> None:
    answer = Answer("chat", 2, n=2)
    for _ in range(9):
        add(answer, piece(0, "a"))
        assert not answer.is_too_long
    add(answer, piece(1, "b"))
    assert texts(answer, 2) == [("aaa", "length"), ("b", "")]
    add(answer, piece(1, "b", finish_reason="stop"))
    # The first choice has no end at the upstream, which is not waited for.
    assert answer.is_too_long
    answer.end("length")
    assert (texts(answer, 2), answer.completion_tokens) == ([("aaa", "length"), ("bb", "stop")], 5)


def test_the_usage_after_a_choice_that_was_too_long_is_read_if_the_upstream_has_ended_it() -> None:
    answer = Answer("chat", 2, n=2)
    for _ in range(5):
        add(answer, piece(0, "a"))
    add(answer, piece(0, finish_reason="stop"))
    add(answer, piece(1, "b", finish_reason="stop"))
    assert not answer.is_too_long
    add(answer, usage=USAGE)
    assert answer.completion_tokens == 9


def test_an_upstream_that_counts_more_tokens_than_all_choices_may_have_is_cut_off() -> None:
    answer = Answer("chat", 2, n=2)
    add(answer, piece(0, "a a a"), piece(1, "b b b"), usage={"prompt_tokens": 7, "completion_tokens": 6})
    assert not answer.is_too_long
    add(answer, piece(0, "a"), usage={"prompt_tokens": 7, "completion_tokens": 7})
    assert answer.is_too_long


def test_tokens_are_those_that_the_upstream_counts_once_and_else_the_chunks_of_all_choices() -> None:
    answer = Answer("chat", 99, n=3)
    for index in (0, 1, 2, 0):
        add(answer, piece(index, "a"))
    assert (answer.counts.prompt, answer.completion_tokens) == (None, 4)
    add(answer, usage=USAGE | {"completion_tokens_details": {"reasoning_tokens": 3}})
    assert (answer.counts.prompt, answer.completion_tokens, answer.extra()) == (7, 9, {"reasoning_tokens": 3})


def a_usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"prompt_tokens": prompt, "completion_tokens": completion} | details


def counted(answer: Answer) -> tuple[int | None, int, int]:
    return answer.counts.prompt, answer.counts.cached, answer.completion_tokens


@pytest.mark.parametrize("own_chunk", [False, True])
def test_counts_that_come_with_the_end_of_each_choice_are_added_and_each_prompt_counts_once(own_chunk: bool) -> None:
    # llama-server counts in the last chunk of a choice, or in one after it.
    answer = Answer("completion", 99, n=4, prompts=2)
    assert answer.add_chunk(None) is None
    for index in (1, 3, 0, 2, 1):
        add(answer, {"index": index, "text": "a"})
    assert counted(answer) == (None, 0, 5)
    usages = {1: a_usage(12, 9, 2), 3: a_usage(16, 4, 1), 0: a_usage(12, 5, 2), 2: a_usage(16, 6, 1)}
    # Until a choice is counted, its chunks are.
    expected = [(12, 2, 12), (28, 3, 15), (28, 3, 19), (28, 3, 24)]
    for (index, usage), totals in zip(usages.items(), expected, strict=True):
        end = {"index": index, "text": "", "finish_reason": "length"}
        if own_chunk:
            add(answer, end)
            add(answer, usage=usage)
        else:
            add(answer, end, usage=usage)
        assert counted(answer) == totals
    add(answer, usage=a_usage(28, 25))
    assert counted(answer) == (28, 0, 25)


@pytest.mark.parametrize("twice", [False, True])
def test_the_choices_are_never_counted_below_their_chunks_however_their_counts_come(twice: bool) -> None:
    answer = Answer("chat", 99, n=2)
    for _ in range(4):
        add(answer, piece(0, "a"), piece(1, "b"))
    own = {"usage": {"prompt_tokens": 3, "completion_tokens": 4}}
    ends = [piece(index, finish_reason="stop") for index in range(2)]
    for chunk in (
        [(ends[0], own), (None, own), (ends[1], own), (None, own)] if twice else [(ends[0], {}), (ends[1], own)]
    ):
        add(answer, *[chunk[0]] if chunk[0] else [], **chunk[1])
    assert answer.completion_tokens == 8


def test_a_choice_that_is_cut_at_its_length_is_counted_beside_one_that_the_upstream_counts() -> None:
    answer = Answer("chat", 2, n=2)
    for _ in range(3):
        add(answer, piece(0, "a"))
    add(answer, piece(1, "b"))
    add(answer, piece(1, "b"))
    add(answer, piece(1, finish_reason="stop"), usage={"prompt_tokens": 3, "completion_tokens": 2})
    assert answer.completion_tokens == 5


def test_a_chunk_with_an_index_in_one_choice_only_is_read_by_places() -> None:
    answer = Answer("chat", 99, n=2)
    add(answer, {"delta": {"content": "a"}}, piece(0, "b"))
    add(answer, piece(0, finish_reason="stop"), piece(1, finish_reason="stop"))
    assert texts(answer, 2) == [("a", "stop"), ("b", "stop")]


def test_counts_of_all_choices_so_far_replace_each_other() -> None:
    answer = Answer("chat", 99, n=2)
    for number, index in enumerate((0, 1, 0), start=1):
        add(answer, piece(index, "a"), usage=a_usage(7, number))
    add(answer, piece(0, finish_reason="stop"), usage=a_usage(7, 3))
    add(answer, piece(1, "b", finish_reason="stop"), usage=a_usage(7, 4))
    assert counted(answer) == (7, 0, 4)


def test_the_prompt_of_an_empty_choice_is_counted() -> None:
    answer = Answer("completion", 99, n=3, prompts=3)
    for index, usage in enumerate((a_usage(12, 9), a_usage(16, 0))):
        add(answer, {"index": index, "text": "a" * (index == 0), "finish_reason": "stop"}, usage=usage)
    assert counted(answer) == (28, 0, 9)


def test_a_count_of_nothing_says_nothing_about_the_choices() -> None:
    answer = Answer("chat", 99, n=2)
    for index in (0, 1):
        add(answer, piece(index, "a"), usage=a_usage(0, 0))
        add(answer, piece(index, finish_reason="stop"), usage=a_usage(7, 3))
    assert counted(answer) == (7, 0, 6)


def test_the_choices_together_have_the_bound_of_one_answer() -> None:
    answer = Answer("chat", MAX_ANSWER_BYTES, n=16)

    def read_on() -> None:
        for number in range(MAX_ANSWER_BYTES // 2_000):
            add(answer, piece(number % 16, "x" * 1_000))

    with pytest.raises(AnswerInvalid, match=f"longer than {MAX_ANSWER_BYTES} bytes"):
        read_on()


def a_view(answer: Answer, n: int) -> JobView:
    """Return the job as the door reads it from the result that the worker has stored."""
    fields: dict[str, Any] = dict.fromkeys(JobView.__dataclass_fields__)
    form = {"forwarded": True, "parts": True} | candidate_form(n, choices=n)
    more = {"form": form, "text": answer.text, "extra": answer.extra(), "finish_reason": answer.finish_reason}
    more |= {"id": "j", "model": "m", "admitted_ms": 0, "prompt_tokens": 7, "degraded": ()}
    return JobView(**fields | more)


def test_calls_reasoning_logprobs_and_other_fields_belong_to_their_choices() -> None:
    answer = Answer("chat", 99, n=2, has_parts=True, keeps_sources=True, keeps_rest=True)
    for index, name in ((1, "late"), (0, "early")):
        call = {"tool_calls": [{"index": 0, "id": f"call_{name}", "function": {"name": name, "arguments": "{}"}}]}
        logprobs = {"content": [{"token": name, "logprob": -1.0}]}
        add(answer, piece(index, delta={"reasoning": f"hm {name}", "note": name}, logprobs=logprobs))
        add(answer, piece(index, delta=call, token_ids=[index], finish_reason="tool_calls"), prompt_token_ids=[5])
    answer.end("stop")
    view = a_view(answer, 2)
    for choice, name in zip(candidates_of(view), ("early", "late"), strict=True):
        parts = parts_of(choice.view)
        assert (parts.calls, parts.reasoning) == ([Call(name, "{}", f"call_{name}")], f"hm {name}")
        upstream = choice.view.extra["upstream"]
        assert (upstream["note"], upstream["choice"]) == (name, {"token_ids": [choice.index]})
        assert upstream["logprobs"]["content"][0]["token"] == name
        assert choice.view.finish_reason == "tool_calls"
    format_ = answer_format(view, "chat")
    others, last = format_.others_chunks(view), format_.last_chunks(view)
    shown = [(chunk["choices"][0]["index"], chunk["choices"][0]["delta"]["note"]) for chunk in others]
    assert shown == [(0, "early"), (1, "late")]
    assert [chunk["choices"][0]["token_ids"] for chunk in last] == [[0], [1]]
    assert [chunk.get("prompt_token_ids") for chunk in last] == [None, [5, 5]]

"""Tests that an answer is built from the upstream's messages, and that nothing it sends is kept without a bound."""

import pytest

from workers.upstream.answer import MAX_ANSWER_BYTES, Answer
from workers.upstream.pieces import AnswerInvalid


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"content": "x" * 1_000}},
        {"delta": {"reasoning_content": "x" * 1_000}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "x" * 1_000}}]}},
        {"delta": {}, "logprobs": {"content": [{"token": "x" * 1_000, "logprob": -1.0}]}},
    ],
    ids=["text", "reasoning", "tool calls", "logprobs of nothing"],
)
def test_an_answer_without_end_is_refused_whatever_it_consists_of(choice):
    answer = Answer("chat", MAX_ANSWER_BYTES)

    def read_on() -> None:
        for _ in range(MAX_ANSWER_BYTES // 500):
            answer.add_chunk({"choices": [{"index": 0, **choice}]})

    with pytest.raises(AnswerInvalid, match=f"longer than {MAX_ANSWER_BYTES} bytes"):
        read_on()

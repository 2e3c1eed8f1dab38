"""Tests that the vectors of a job's inputs are read only if there is one for each, and all are numbers."""

import base64
from array import array
from typing import Any

import pytest

from workers.upstream.pieces import AnswerInvalid
from workers.upstream.vectors import Vectors


def encoded(*numbers: float) -> str:
    return base64.b64encode(array("f", numbers).tobytes()).decode()


@pytest.mark.parametrize("vector", [[1, 2.5], encoded(1, 2.5)])
def test_numbers_and_base64_are_the_same_vector(vector: Any) -> None:
    vectors = Vectors(1)
    assert vectors.add_whole({"data": [{"embedding": vector}], "usage": {"prompt_tokens": 4}}) == ""
    assert vectors.extra() == {"embeddings": [encoded(1, 2.5)]}
    assert (vectors.counts.prompt, vectors.completion_tokens, vectors.finish_reason) == (4, 0, "stop")


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        [{"embedding": [1.0]}] * 3,
        [{"index": 0, "embedding": [1.0]}] * 2,
        [{"index": 1, "embedding": [1.0]}, {"index": 2, "embedding": [1.0]}],
        [{"embedding": [1.0]}, "x"],
        [{"embedding": [1.0]}, {"embedding": []}],
        [{"embedding": [1.0]}, {"embedding": [None]}],
        [{"embedding": [1.0]}, {"embedding": [True]}],
        [{"embedding": [1.0]}, {"embedding": [1e999]}],
        [{"embedding": [1.0]}, {"embedding": [10**400]}],
        [{"embedding": [1.0]}, {"embedding": [[1.0]]}],
        [{"embedding": [1.0]}, {"embedding": "abc"}],
        [{"embedding": [1.0]}, {"embedding": "AAAA"}],
        [{"embedding": [1.0]}, {"embedding": encoded(float("nan"))}],
        [{"embedding": [1.0]}, {}],
    ],
)
def test_what_is_not_one_vector_for_each_input_is_refused(data: Any) -> None:
    vectors = Vectors(2)
    with pytest.raises(AnswerInvalid):
        vectors.add_whole({"data": data})
    assert vectors.extra() == {}


def test_a_stream_is_refused() -> None:
    with pytest.raises(AnswerInvalid):
        Vectors(1).add_chunk({"choices": []})

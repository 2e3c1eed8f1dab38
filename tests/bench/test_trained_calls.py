"""Tests of the committed demo model: it calls the right tools for requests in words that its training does not have."""

from collections.abc import Sequence

import pytest

from tools.demo_model.evaluate import Attempt, attempts, loops, questions
from workers.demo import demo_model_path

#: Number of requests, each with three tools.
N_REQUESTS = 200


@pytest.fixture(scope="module")
def made() -> Sequence[Attempt]:
    return attempts(demo_model_path(), questions(1, N_REQUESTS), tool_choice="auto")


def test_the_right_one_of_three_tools_is_called_for_nine_of_ten_unseen_requests(made: Sequence[Attempt]) -> None:
    assert sum(attempt.has_right_tool for attempt in made) >= 0.9 * N_REQUESTS


def test_four_of_five_requests_get_a_call_with_exactly_their_values(made: Sequence[Attempt]) -> None:
    assert sum(attempt.has_right_arguments for attempt in made) >= 0.8 * N_REQUESTS


def test_the_result_is_told_for_four_of_five_requests(made: Sequence[Attempt]) -> None:
    assert sum(loop.is_right for loop in loops(demo_model_path(), made)) >= 0.8 * N_REQUESTS

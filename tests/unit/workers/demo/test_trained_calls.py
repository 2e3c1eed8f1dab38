"""Tests of the committed demo model: it calls tools as requests need them, which it was not trained with."""

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


def test_the_arguments_of_four_of_five_calls_are_the_values_of_the_request(made: Sequence[Attempt]) -> None:
    assert sum(attempt.has_right_arguments for attempt in made) >= 0.8 * N_REQUESTS


def test_the_results_of_four_of_five_calls_are_told(made: Sequence[Attempt]) -> None:
    assert sum(loop.is_right for loop in loops(demo_model_path(), made)) >= 0.8 * N_REQUESTS

"""Tests of the time that a request's retrieval may take."""

import pytest

from web.api.deadline import RequestDeadline
from web.api.retrieval_field import Retrieval
from web.retrieval.step import budget_ms


@pytest.mark.parametrize(
    ("named", "deadline_ms", "start_within_ms", "budget"),
    [
        (None, 60_000, None, 40),
        (200, 60_000, None, 200),
        (10, 60_000, None, 10),
        (None, 100, None, 10),
        (5_000, 20_000, None, 2_000),
        (5_000, 20_000, 1_000, 100),
        (None, 60_000, 30_000, 40),
    ],
)
def test_the_budget_is_the_requests_or_the_usual_one_and_at_most_a_tenth_of_its_deadlines(
    named, deadline_ms, start_within_ms, budget
):
    wanted = Retrieval(collection="handbook", budget_ms=named)
    assert budget_ms(wanted, RequestDeadline(deadline_ms, "body", start_within_ms), 40) == budget

"""Tests the report of `penstock doctor` about the clocks of its own and of the store's machine."""

import time

import pytest
import redis

from shared.cli.commands.doctor import skew_notes


def test_clocks_that_agree_are_not_mentioned(redis_client: redis.Redis) -> None:
    assert skew_notes(redis_client) == []
    assert skew_notes(redis_client, lambda: time.time() + 0.5) == []


@pytest.mark.parametrize(("skew_s", "expected"), [(90.0, " s ahead of"), (-3_600.0, " s behind")])
def test_a_difference_of_more_than_a_second_is_reported(
    redis_client: redis.Redis, skew_s: float, expected: str
) -> None:
    (note,) = skew_notes(redis_client, lambda: time.time() + skew_s)
    assert expected in note


def test_a_slow_answer_is_not_taken_for_a_difference(redis_client: redis.Redis) -> None:
    seconds, micros = redis_client.time()
    readings = iter([seconds + micros / 1_000_000 - 4.0, seconds + micros / 1_000_000 + 0.5])
    assert skew_notes(redis_client, lambda: next(readings)) == []

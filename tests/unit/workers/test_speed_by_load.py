"""Tests that the speed with another number of jobs is predicted from the speeds that were measured."""

import pytest

from workers.speed_by_load import SpeedByLoad


def measured(step_s: float, row_s: float, *numbers: float) -> SpeedByLoad:
    """Measure a server whose steps take this time, and more for each row, with these numbers of jobs."""
    speed = SpeedByLoad()
    for n in numbers:
        token_s = step_s + row_s * n
        speed.add(n / token_s, n, n * n)
    return speed


def test_nothing_is_predicted_before_anything_was_measured():
    speed = SpeedByLoad()
    speed.add(0, 4.0, 16.0)
    speed.add(10, 0.0, 0.0)
    assert speed.rate(4) == 0


@pytest.mark.parametrize(("step_s", "row_s"), [(0.02, 0.0), (0.02, 0.001), (0.0, 0.01), (0.004, 0.004)])
def test_measurements_with_different_numbers_predict_another_number(step_s, row_s):
    speed = measured(step_s, row_s, 1, 2, 4, 8)
    assert speed.rate(8) == pytest.approx(8 / (step_s + 8 * row_s), rel=0.05)
    assert speed.rate(16) == pytest.approx(16 / (step_s + 16 * row_s), rel=0.2)


@pytest.mark.parametrize("n", [1, 4, 100])
def test_after_measurements_with_one_number_half_of_the_time_is_assumed_to_grow_with_it(n):
    speed = measured(0.02, 0.001, *[n] * 5)
    assert speed.rate(n) == pytest.approx(n / (0.02 + 0.001 * n))
    assert speed.rate(2 * n) == pytest.approx(speed.rate(n) * 2 / 1.5)


def test_a_server_that_is_slower_with_more_jobs_is_expected_to_be_no_faster_with_even_more():
    speed = SpeedByLoad()
    for n, tokens in ((1, 1_000), (4, 800), (16, 400)):
        speed.add(tokens, n, n * n)
    assert speed.rate(32) == pytest.approx(speed.rate(16), rel=0.01)


def test_new_measurements_count_more_than_old_ones():
    speed = measured(0.02, 0.001, *[4] * 30, *[8] * 30)
    for _ in range(30):
        speed.add(8 / 0.1, 8, 64)
    assert speed.rate(8) == pytest.approx(8 / 0.1, rel=0.15)

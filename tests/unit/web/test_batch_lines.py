"""Tests of a batch's window, of its lines, and of when a line is offered again."""

import re

import pytest

from web.batches.line_offers import OpenLine, job_id
from web.batches.lines import BadLine, parse_line, read_lines
from web.batches.records import BatchBody, window_ms

#: For each unit, the longest window and a number of digits that no window has.
LONGEST = {"s": 604_800, "m": 10_080, "h": 168, "d": 7}


@pytest.mark.parametrize("unit", LONGEST)
def test_the_published_pattern_of_a_window_is_what_the_door_accepts(unit):
    (pattern,) = [BatchBody.model_json_schema()["properties"]["completion_window"]["pattern"]]
    longest = LONGEST[unit]
    numbers = {*range(300), *range(longest - 300, longest + 300), 99_999, 100_000, 599_999, 600_000, 10**6}
    for number in numbers:
        is_valid = 0 < number <= longest
        assert bool(re.fullmatch(pattern, f"{number}{unit}")) == is_valid, number
        if is_valid:
            assert window_ms(f"{number}{unit}") > 0


def test_a_line_whose_jobs_expire_is_offered_after_a_second_and_then_ever_later():
    line, rests = OpenLine(3, 0, "c3", job_id("b", 3, 0)), []
    for attempt in range(1, 40):
        line = line.again("b", 5_000)
        rests.append(line.at_ms - 5_000)
        assert line.job == job_id("b", 3, attempt)
    assert rests[:7] == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000]
    assert set(rests[7:]) == {60_000}


def test_a_byte_order_mark_at_the_beginning_of_the_file_is_no_part_of_its_first_line():
    mark, endpoint = b"\xef\xbb\xbf", "/v1/completions"
    line = b'{"custom_id":"c","method":"POST","url":"/v1/completions","body":{}}\r\n'
    first, second = read_lines(iter([mark + line, mark + line]), longest=1_000)
    assert parse_line(first, endpoint, 1_000).custom_id == "c"
    with pytest.raises(BadLine):
        parse_line(second, endpoint, 1_000)

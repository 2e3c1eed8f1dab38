"""Tests of the checks that move a job to a later pool: they judge what the answer says, not how it reasons."""

import pytest

from shared.answer_parts import ARGUMENTS, CALL, END, REASONING
from shared.jobs.job import Ending
from shared.jobs.outcomes import FinishReason, Outcome
from workers.answer_check import failed_check

THOUGHT = f"{REASONING}Two plus two, {{as JSON}}{END}"
CALLED = f'{CALL}add{ARGUMENTS}{{"a": 2}}{END}'
PARTS = {"escalate": ["invalid_json"], "parts": True}


def ended(text, finish_reason=FinishReason.STOP, **extra):
    return Ending("a", "token", Outcome.SUCCEEDED, text=text, finish_reason=finish_reason, extra=extra)


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ('{"sum": 4}', ""),
        (THOUGHT + '{"sum": 4}', ""),
        (THOUGHT + "four", "invalid_json"),
        (THOUGHT, "invalid_json"),
        (f'{REASONING}{{"sum": 4}}{END}four', "invalid_json"),
        (THOUGHT + CALLED, ""),
        ("", "invalid_json"),
    ],
)
def test_an_answer_is_invalid_json_by_its_content_without_its_reasoning(text, failed):
    assert failed_check(PARTS, ended(text)) == failed


def test_each_check_that_is_named_counts_and_no_other():
    cut = ended(THOUGHT + "four", FinishReason.LENGTH)
    assert failed_check({"escalate": ["length", "invalid_json"]}, cut) == "length"
    assert failed_check({"escalate": ["length"]}, ended("four")) == ""
    assert failed_check({}, cut) == ""
    upstream = ended("I look it up", upstream={"tool_calls": [{"id": "a"}]})
    assert failed_check(PARTS, upstream) == ""

"""Tests that a saved plan is read back unchanged, and that an invalid line is named."""

import pytest

from bench.sim.arrivals import Crowd, plan
from bench.sim.record import recorded, save


def test_a_saved_plan_is_read_back_unchanged(tmp_path):
    jobs = plan(Crowd(20.0, light_rate_per_s=0.5), 10.0, 3)
    jobs[3].leaves_after_ms = 250.0
    assert save(jobs, tmp_path / "plan") == len(jobs)
    again = recorded(tmp_path / "plan")

    def fields_of(some):
        return [
            (a.number, a.tenant, a.at_ms, a.prompt, a.answer, a.deadline_ms, a.light, a.leaves_after_ms) for a in some
        ]

    assert fields_of(again) == fields_of(jobs)


def test_a_line_that_is_not_a_job_is_named_in_the_error(tmp_path):
    (tmp_path / "plan").write_text('{"tenant": "blue"}\n')
    with pytest.raises(ValueError, match="line 1"):
        recorded(tmp_path / "plan")

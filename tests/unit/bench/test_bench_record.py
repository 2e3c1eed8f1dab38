"""A plan that is saved is the plan that is read, and a store tells what it admitted."""

import pytest

from bench.sim.arrivals import Crowd, plan
from bench.sim.record import recorded, save


def test_a_saved_plan_is_read_as_it_was(tmp_path):
    asks = plan(Crowd(20.0, light_rate_per_s=0.5), 10.0, 3)
    asks[3].leaves_after_ms = 250.0
    assert save(asks, tmp_path / "plan") == len(asks)
    again = recorded(tmp_path / "plan")

    def seen(some):
        return [
            (a.number, a.tenant, a.at_ms, a.prompt, a.answer, a.deadline_ms, a.light, a.leaves_after_ms) for a in some
        ]

    assert seen(again) == seen(asks)


def test_a_line_that_is_no_send_is_named(tmp_path):
    (tmp_path / "plan").write_text('{"tenant": "blue"}\n')
    with pytest.raises(ValueError, match="line 1"):
        recorded(tmp_path / "plan")

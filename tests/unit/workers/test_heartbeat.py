"""Tests of the step times in a heartbeat, which a worker reports if its sequences share each step."""

import pytest

from shared.clock import ManualClock
from tests.support.lockstep import CALL_MS, ROW_MS, TOKEN_MS, Lockstep, lockstep_engine
from tests.support.logs import logs_of_this_thread
from workers.duties.claimed_jobs import ClaimedJobs
from workers.duties.heartbeat import Heartbeat
from workers.duties.throughput import Throughput
from workers.engine.events import FreeCapacity, JobSpec
from workers.engine.loop import Engine
from workers.engine.sim import SimBackend
from workers.engine.stats import EngineSettings


def _heartbeat(engine: Engine, clock: ManualClock) -> Heartbeat:
    return Heartbeat("w1", ["m"], engine, ClaimedJobs(), Throughput(engine, 4, clock), lambda: 0)


def test_a_heartbeat_reports_the_times_of_a_call_a_row_and_a_prompt_token():
    clock = ManualClock()
    engine = lockstep_engine(Lockstep(slots=4, n_ctx=1000, clock=clock), lambda _event: None)
    for i in range(12):
        engine.submit(engine.prepare(JobSpec(str(i), "blue", {"prompt": "a " * (20 * i + 1)}, 10 + i, 1e12)))
    while engine.step():
        pass
    facts = _heartbeat(engine, clock).report().facts
    assert facts["fit_call_ms"] == pytest.approx(CALL_MS, rel=0.1)
    assert facts["fit_row_ms"] == pytest.approx(ROW_MS, rel=0.1)
    assert facts["fit_prompt_token_ms"] == pytest.approx(TOKEN_MS, rel=0.1)
    assert facts["fit_look_ns"] >= 0
    assert facts["fit_draft_ms"] >= 0
    # The time of a call is divided among the four rows of a full step.
    assert facts["fit_generated_weight"] == pytest.approx((CALL_MS / 4 + ROW_MS) / TOKEN_MS, rel=0.1)


def test_a_heartbeat_reports_no_step_times_if_each_slot_runs_at_its_own_pace():
    clock = ManualClock()
    engine = Engine(SimBackend(slots=2, cells=100, n_ctx=100, clock=clock), EngineSettings(), print, clock)
    assert not [name for name in _heartbeat(engine, clock).report().facts if name.startswith("fit_")]


class Unmeasurable(Throughput):
    """Rates that cannot be computed."""

    def rates(self, *, full: bool) -> dict[str, str | int | float]:
        raise ZeroDivisionError(full)


def test_a_heartbeat_without_rates_is_sent_all_the_same_because_it_renews_leases():
    clock = ManualClock()
    engine = Engine(SimBackend(slots=2, cells=100, n_ctx=100, clock=clock), EngineSettings(), print, clock)
    heartbeat = Heartbeat("w1", ["m"], engine, ClaimedJobs(), Unmeasurable(engine, 4, clock), lambda: 0)
    with logs_of_this_thread() as logs:
        report = heartbeat.report()
    assert (report.slots, "mu_wtps" in report.facts) == (2, False)
    assert [entry["event"] for entry in logs] == ["heartbeat.unmeasured"]


def test_a_host_whose_name_is_not_utf_8_can_be_reported(monkeypatch):
    monkeypatch.setattr("workers.duties.heartbeat.socket.gethostname", lambda: "gr\udcfcn")
    clock = ManualClock()
    engine = Engine(SimBackend(slots=2, cells=100, n_ctx=100, clock=clock), EngineSettings(), print, clock)
    facts = _heartbeat(engine, clock).report().facts
    assert facts["host"] == "gr?n"


@pytest.mark.parametrize(("free", "used"), [(512, 0.0), (128, 0.75), (0, 1.0), (4 << 20, 0.0)])
def test_the_used_share_of_cells_is_0_for_an_engine_that_keeps_none_and_has_room_for_longer_jobs(free, used):
    assert FreeCapacity(4, free).kv_used(512) == used

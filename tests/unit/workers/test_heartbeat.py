"""A beat says how long steps take, where a step is one for all."""

import pytest

from shared.clock import HeldClock
from tests.support.lockstep import CALL_MS, ROW_MS, TOKEN_MS, Lockstep, lockstep_engine
from workers.duties.claimed_jobs import ClaimedJobs
from workers.duties.heartbeat import Heartbeat
from workers.duties.throughput import Throughput
from workers.engine.events import JobSpec
from workers.engine.loop import Engine
from workers.engine.sim import SimBackend
from workers.engine.stats import EngineSettings


def _heartbeat(engine: Engine, clock: HeldClock) -> Heartbeat:
    return Heartbeat("w1", ["m"], engine, ClaimedJobs(), Throughput(engine, 4, clock), lambda: 0)


def test_a_beat_says_what_a_call_a_row_and_a_prompt_token_take():
    clock = HeldClock()
    engine = lockstep_engine(Lockstep(slots=4, n_ctx=1000, clock=clock), lambda _event: None)
    for i in range(12):
        engine.submit(engine.prepare(JobSpec(str(i), "blue", {"prompt": "a " * (20 * i + 1)}, 10 + i, 1e12)))
    while engine.step():
        pass
    facts = _heartbeat(engine, clock).beat().facts
    assert facts["fit_call_ms"] == pytest.approx(CALL_MS, rel=0.1)
    assert facts["fit_row_ms"] == pytest.approx(ROW_MS, rel=0.1)
    assert facts["fit_prompt_token_ms"] == pytest.approx(TOKEN_MS, rel=0.1)
    assert facts["fit_look_ns"] >= 0


def test_a_sim_whose_slots_take_each_its_own_time_has_no_such_figures():
    clock = HeldClock()
    engine = Engine(SimBackend(slots=2, cells=100, n_ctx=100, clock=clock), EngineSettings(), print, clock)
    assert not [name for name in _heartbeat(engine, clock).beat().facts if name.startswith("fit_")]

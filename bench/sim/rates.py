"""The rates that a modelled worker reports, measured by the real workers' own estimator in virtual time."""

from dataclasses import dataclass
from typing import cast

from bench.sim.asks import GENERATED_WEIGHT
from shared.clock import ManualClock
from shared.jobs.job import Usage
from workers.duties.throughput import Throughput
from workers.engine.backend import Facts
from workers.engine.stats import EngineStats
from workers.engine.step_time import StepTimeModel
from workers.job_engine import JobEngine


@dataclass(frozen=True)
class _Engine:
    """The part of an engine that the estimator reads."""

    facts: Facts
    stats: EngineStats
    shares_steps: bool = True

    @property
    def slots(self) -> int:
        """The number of jobs that the modelled worker runs at once."""
        return self.facts.slots


class MeasuredRates:
    """Feeds `workers.duties.throughput` with a modelled worker's counters and ended jobs."""

    def __init__(self, facts: Facts, stats: EngineStats, fit: StepTimeModel) -> None:
        """Start with the rates that a calibration would have measured, which `facts` holds."""
        self._clock = ManualClock(0.0)
        self._figures = fit.figures(facts.slots)
        engine = cast("JobEngine", _Engine(facts, stats))
        self._estimator = Throughput(engine, GENERATED_WEIGHT, self._clock)

    def record(self, usage: Usage) -> None:
        """Update the rates with an ended job, as the worker does when the job is settled."""
        self._estimator.record_usage(usage)

    def report(self, now_ms: float, *, full: bool) -> dict[str, str | int | float]:
        """Return the rates for the heartbeat at `now_ms`. `full` says whether every slot is taken now."""
        self._clock.advance(max(0.0, now_ms / 1_000 - self._clock.monotonic()))
        return self._estimator.rates(full=full) | self._figures | {"can_pause": 1}

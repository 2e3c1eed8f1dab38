"""E5: recovery from a burst of ten times the load for 30 s, and from the loss of half of the workers for 30 s."""

from bench.sim.arrivals import phases
from bench.sim.asks import SimJob
from bench.sim.ledger import success
from bench.sim.rows import Figures, Row, Task
from bench.sim.simulation import Simulation
from bench.sim.yard import Basis, run

SYSTEMS = ("ours", "B3", "B4", "B5")
CASES = ("burst", "half dark")
BEGIN_S, TROUBLE_S, AFTER_S = 80.0, 30.0, 90.0
WARM_S = 30.0
#: Length of the windows in which answers are counted, in s.
WINDOW_S = 10.0
#: Success counts as recovered when it is at most this much below its former value.
CLOSE = 0.02


def tasks() -> list[Task]:
    """Return a task for both cases and every system."""
    return [Task("E5", (name, case), one) for case in CASES for name in SYSTEMS]


def one(basis: Basis, name: str, case: str) -> Figures:
    """Run one system in one of the two cases."""
    calm = basis.crowd(0.7)
    trouble = basis.crowd(10.0) if case == "burst" else calm
    jobs = phases([(calm, BEGIN_S), (trouble, TROUBLE_S), (calm, AFTER_S)], basis.seed)
    events = _lose_half if case == "half dark" else _no_events
    done = run(basis, name, jobs, BEGIN_S + TROUBLE_S + AFTER_S, events=events)
    before = [job for job in done.jobs if WARM_S * 1_000 <= job.at_ms < (BEGIN_S - 10) * 1_000]
    levels = [_answers(done.jobs, begin) for begin in _steps(WARM_S, BEGIN_S - WINDOW_S)]
    during = [_answers(done.jobs, begin) for begin in _steps(BEGIN_S, BEGIN_S + TROUBLE_S - WINDOW_S)]
    after = [_answers(done.jobs, begin) for begin in _steps(BEGIN_S + TROUBLE_S, BEGIN_S + TROUBLE_S + 20)]
    return {
        "success_before": success(before),
        "answers_before": min(levels),
        "answers_during": min(during),
        "answers_after": min(after),
        "back_after_s": _back_after_s(done.jobs, success(before)),
        "residence_s": basis.residence_ms / 1_000,
        "per_s": [_answers(done.jobs, float(second), 1.0) for second in range(int(done.seconds))],
    }


def _no_events(_: Simulation) -> None:
    """Schedule nothing: in the burst case only the load changes."""


def _lose_half(simulation: Simulation) -> None:
    """Schedule the loss and the return of every second worker."""
    for worker in simulation.result.workers[::2]:
        simulation.at(BEGIN_S * 1_000, simulation.lose, worker)
        simulation.at((BEGIN_S + TROUBLE_S) * 1_000, simulation.bring_back, worker)


def _steps(begin_s: float, end_s: float) -> list[float]:
    return [begin_s + i for i in range(int(end_s - begin_s) + 1)]


def _answers(jobs: list[SimJob], begin_s: float, length_s: float = WINDOW_S) -> float:
    """Return the answers in time per second within a window."""
    begin_ms, end_ms = begin_s * 1_000, (begin_s + length_s) * 1_000
    return sum(1 for a in jobs if a.in_time and a.ended_ms is not None and begin_ms <= a.ended_ms < end_ms) / length_s


def _back_after_s(jobs: list[SimJob], normal: float) -> float:
    """Return the s after the trouble until all later jobs have the former success, or NaN if they never have it."""
    end_s = BEGIN_S + TROUBLE_S
    latest_ms = (end_s + AFTER_S - 30) * 1_000
    late = [job for job in jobs if end_s * 1_000 <= job.at_ms < latest_ms]

    def sent_in_window(begin_ms: float) -> list[SimJob]:
        return [job for job in late if begin_ms <= job.at_ms < begin_ms + 2_500]

    back = float("nan")
    for quarter in range(int((latest_ms - end_s * 1_000) / 250) - 10, -1, -1):
        begin_ms = end_s * 1_000 + 250 * quarter
        if success(sent_in_window(begin_ms)) < normal - CLOSE:
            break
        back = quarter / 4
    return back


def rows(got: dict[tuple[str, str], Figures]) -> list[Row]:
    """Return the rows for the time to recovery and for the answers in the meantime."""
    others = [name for name in SYSTEMS if name != "ours"]
    made = []
    for case in CASES:
        ours = got["ours", case]
        most = 2 * ours["residence_s"]
        made.append(
            Row(
                "E5",
                f"{case}: s until success is as before",
                f"<= {most:.1f} (goal {most / 2:.1f})",
                f"{ours['back_after_s']:.2f}",
                ours["back_after_s"] <= most,
                {name: f"{got[name, case]['back_after_s']:.2f}" for name in others},
            )
        )
    ours = got["ours", "burst"]
    made.append(
        Row(
            "E5",
            "burst: fewest answers in time a second over 10 s, during and after",
            f">= {ours['answers_before']:.1f}, the fewest before",
            f"{ours['answers_during']:.1f} {ours['answers_after']:.1f}",
            min(ours["answers_during"], ours["answers_after"]) >= ours["answers_before"],
            {
                name: f"{got[name, 'burst']['answers_during']:.1f} {got[name, 'burst']['answers_after']:.1f}"
                for name in others
            },
        )
    )
    return made

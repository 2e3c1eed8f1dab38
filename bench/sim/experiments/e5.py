"""E5: 0.7x, ten times as much for 30 s, 0.7x again; and half of the workers dark for 30 s."""

from collections.abc import Callable

from bench.sim.arrivals import phases
from bench.sim.asks import Ask
from bench.sim.ledger import success
from bench.sim.rows import Figures, Row, Task
from bench.sim.simulation import Simulation
from bench.sim.yard import Basis, run

SYSTEMS = ("ours", "B3", "B4", "B5")
CASES = ("burst", "half dark")
BEGIN_S, TROUBLE_S, AFTER_S = 80.0, 30.0, 90.0
WARM_S = 30.0
#: The answers' level is looked at in windows of this length.
WINDOW_S = 10.0
#: Success counts as back when it is this close to what it was.
CLOSE = 0.02


def tasks() -> list[Task]:
    """Both cases for every system."""
    return [Task("E5", (name, case), one) for case in CASES for name in SYSTEMS]


def one(basis: Basis, name: str, case: str) -> Figures:
    """One system, one kind of trouble."""
    calm = basis.crowd(0.7)
    trouble = basis.crowd(10.0) if case == "burst" else calm
    asks = phases([(calm, BEGIN_S), (trouble, TROUBLE_S), (calm, AFTER_S)], basis.seed)
    events = _half_dark if case == "half dark" else _nothing
    done = run(basis, name, asks, BEGIN_S + TROUBLE_S + AFTER_S, events=events)
    before = [ask for ask in done.asks if WARM_S * 1_000 <= ask.at_ms < (BEGIN_S - 10) * 1_000]
    levels = [_answers(done.asks, begin) for begin in _steps(WARM_S, BEGIN_S - WINDOW_S)]
    during = [_answers(done.asks, begin) for begin in _steps(BEGIN_S, BEGIN_S + TROUBLE_S - WINDOW_S)]
    after = [_answers(done.asks, begin) for begin in _steps(BEGIN_S + TROUBLE_S, BEGIN_S + TROUBLE_S + 20)]
    return {
        "success_before": success(before),
        "answers_before": min(levels),
        "answers_during": min(during),
        "answers_after": min(after),
        "back_after_s": _back_after_s(done.asks, success(before)),
        "residence_s": basis.residence_ms / 1_000,
        "per_s": [_answers(done.asks, float(second), 1.0) for second in range(int(done.seconds))],
    }


def _nothing(_: Simulation) -> None:
    """The load is trouble enough."""


def _half_dark(simulation: Simulation) -> None:
    """Every second worker is lost, and comes back."""
    for worker in simulation.result.workers[::2]:
        simulation.at(BEGIN_S * 1_000, simulation.lose, worker)
        simulation.at((BEGIN_S + TROUBLE_S) * 1_000, simulation.bring_back, worker)


def _steps(begin_s: float, end_s: float) -> list[float]:
    return [begin_s + i for i in range(int(end_s - begin_s) + 1)]


def _answers(asks: list[Ask], begin_s: float, length_s: float = WINDOW_S) -> float:
    """Answers a second that were in time, in a window."""
    begin_ms, end_ms = begin_s * 1_000, (begin_s + length_s) * 1_000
    return sum(1 for a in asks if a.in_time and a.ended_ms is not None and begin_ms <= a.ended_ms < end_ms) / length_s


def _back_after_s(asks: list[Ask], normal: float) -> float:
    """After how long everybody who came later was served as before; NaN when that was never so."""
    end_s = BEGIN_S + TROUBLE_S
    latest_ms = (end_s + AFTER_S - 30) * 1_000
    late = [ask for ask in asks if end_s * 1_000 <= ask.at_ms < latest_ms]
    windows: Callable[[float], list[Ask]] = lambda begin_ms: [  # noqa: E731 - a name for what follows
        ask for ask in late if begin_ms <= ask.at_ms < begin_ms + 2_500
    ]
    back = float("nan")
    for quarter in range(int((latest_ms - end_s * 1_000) / 250) - 10, -1, -1):
        begin_ms = end_s * 1_000 + 250 * quarter
        if success(windows(begin_ms)) < normal - CLOSE:
            break
        back = quarter / 4
    return back


def rows(got: dict[tuple[str, str], Figures]) -> list[Row]:
    """How long until all is as before, and the level meanwhile."""
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

"""E6: clients that retry at twice the load, as the OpenAI package does or in layers, with or without obeying hints."""

from bench.sim.arrivals import plan
from bench.sim.clients import Layered, OpenAIPackage
from bench.sim.ledger import Window, summary
from bench.sim.rows import Figures, Row, Task, at_least, at_most
from bench.sim.yard import WARM_UP_S, Basis, run

KINDS = ("package", "layered")
HEEDING = (0.0, 0.5, 1.0)
SYSTEMS = ("ours", "B4")
SECONDS = 240.0
#: Jobs first sent before this time have ended or given up by the end of the run, since no hint exceeds a minute.
SENT_UNTIL_S = 130.0
LOAD = 2.0


def tasks() -> list[Task]:
    """Return a task for every kind of client, against Penstock and the bounded FIFO."""
    return [Task("E6", (name, kind, heeds), one) for kind in KINDS for heeds in HEEDING for name in SYSTEMS]


def one(basis: Basis, name: str, kind: str, heeds: float, seconds: float = SECONDS) -> Figures:
    """Run one system with one kind of client."""
    client = OpenAIPackage(heeds=heeds) if kind == "package" else Layered(heeds=heeds)
    done = run(basis, name, plan(basis.crowd(LOAD), seconds, basis.seed), seconds, client=client)
    window = Window(WARM_UP_S * 1_000, seconds * 1_000)
    return summary(done, window, basis.capacity_wtps, SENT_UNTIL_S * seconds / SECONDS * 1_000)


def rows(got: dict[tuple[str, str, float], Figures]) -> list[Row]:
    """Return the rows for attempts when hints are obeyed, and for useful work and success when they are not."""

    def line(figure: str, name: str, form: str = ".2f") -> str:
        return " / ".join(" ".join(format(got[name, kind, heeds][figure], form) for heeds in HEEDING) for kind in KINDS)

    unheeded = [got["ours", kind, 0.0] for kind in KINDS]
    return [
        Row(
            "E6",
            "attempts a job at 2x, share of clients that obey hints 0 .5 1: package / layered",
            "<= 1.10 when the package obeys",
            line("attempts_per_job", "ours"),
            at_most(got["ours", "package", 1.0]["attempts_per_job"], 1.10),
            {"B4": line("attempts_per_job", "B4")},
        ),
        Row(
            "E6",
            "useful work / capacity, the same",
            ">= .90 when no client obeys",
            line("useful", "ours", ".3f"),
            all(at_least(figures["useful"], 0.90) for figures in unheeded),
            {"B4": line("useful", "B4", ".3f")},
        ),
        Row(
            "E6",
            "light tenants' success, the same",
            ">= .95 when no client obeys",
            line("light_success", "ours", ".3f"),
            all(at_least(figures["light_success"], 0.95) for figures in unheeded),
            {"B4": line("light_success", "B4", ".3f")},
        ),
        Row(
            "E6",
            "share of jobs answered in time, the same",
            "shown",
            line("success", "ours", ".3f"),
            None,
            {"B4": line("success", "B4", ".3f")},
        ),
        Row(
            "E6",
            "share of jobs whose client gave up, because of x-should-retry or after its last try, the same",
            "shown",
            line("refused", "ours", ".3f"),
            None,
            {"B4": line("refused", "B4", ".3f")},
        ),
    ]

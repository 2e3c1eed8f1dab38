"""Shows what the demo's clients saw: a live table on a terminal, plain lines elsewhere, and the tables at the end."""

from typing import TYPE_CHECKING, Any

from shared.cli import output
from shared.cli.demo.ledger import Ledger, Phase

if TYPE_CHECKING:
    from rich.console import Group

_COLUMNS = ("team", "weight", "clients", "sent", "admitted", "refused", "retry after", "1st token", "share")
_TITLES: dict[Phase, str] = {"before_flood": "Before the flood", "flood": "During the flood", "end": "At the end"}
#: Seconds between two plain lines.
_LINE_EVERY_S = 5.0


class Display:
    """Shows the figures while the demo runs: one line on stderr every few seconds. `header` is shown first."""

    def __init__(self, header: str) -> None:
        output.write_note(header)
        self._next_s = 0.0

    def update(self, ledger: Ledger, elapsed_s: float) -> None:
        """Show the figures as they are `elapsed_s` seconds after the clients began, unless the last line is newer."""
        if elapsed_s < self._next_s:
            return
        self._next_s = elapsed_s + _LINE_EVERY_S
        teams = "; ".join(
            f"{row['tenant']} {row['sent']} sent, {row['admitted']} admitted, {row['refused']} refused"
            for row in ledger.summary(ledger.phase)
        )
        output.write_note(f"{elapsed_s:.0f} s, {_TITLES[ledger.phase].lower()}: {teams}")

    def close(self) -> None:
        """Leave the terminal as it was."""


class LiveTable(Display):
    """Tables on a terminal that are drawn again and again in place."""

    def __init__(self, header: str) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(header)
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
        self._live.start()

    def update(self, ledger: Ledger, elapsed_s: float) -> None:
        self._live.update(_draw(ledger, elapsed_s), refresh=True)

    def close(self) -> None:
        self._live.stop()


def _draw(ledger: Ledger, elapsed_s: float) -> "Group":
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[Text | Table] = []
    phases: list[Phase] = ["before_flood", "flood"] if ledger.phase != "before_flood" else ["before_flood"]
    for phase in phases:
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
        for index, name in enumerate(_COLUMNS):
            table.add_column(name, justify="left" if index == 0 else "right")
        for row in ledger.summary(phase):
            table.add_row(*(str(cell) for cell in _cells(row)))
        parts += [Text(_TITLES[phase], style="bold"), table, Text("")]
    doing = "waiting for the last answers" if ledger.phase == "end" else "Ctrl-C ends the demo"
    parts.append(Text(f"{elapsed_s:.0f} s; {doing}", style="dim"))
    return Group(*parts)


def write_summary(ledger: Ledger) -> None:
    """Write the tables of both phases to stdout."""
    phases: tuple[Phase, ...] = ("before_flood", "flood")
    for phase in phases:
        output.write_data(f"{_TITLES[phase]}:")
        rows = ledger.summary(phase)
        output.write_table(_COLUMNS, (_cells(row) for row in rows))
        early = sum(row["ended_early"] for row in rows)
        if early:
            output.write_data(f"{early} admitted jobs ended without a whole answer, for example at their deadline.")
        output.write_data("")


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    hints, first = row["retry_hint_ms"], row["first_token_ms"]
    return (
        row["tenant"],
        f"{row['weight']:g}",
        row["clients"],
        row["sent"],
        row["admitted"],
        row["refused"],
        f"{hints['min'] / 1000:.1f}-{hints['max'] / 1000:.1f} s" if hints else "-",
        f"{first['p50'] / 1000:.2f} s" if first else "-",
        "-" if row["share"] is None else f"{100 * row['share']:.0f}%",
    )

"""`penstock alerts`: which alerts are open, and a test message through the door."""

import secrets
import time
from typing import TYPE_CHECKING

import typer

from shared.cli import output
from shared.cli.reach import FAULT, Json, StateDir
from shared.cli.reached_cells import CellName, reading_cells, writing_cells
from shared.durations import utc_time

if TYPE_CHECKING:
    from shared.alerts.stored import StoredAlerts

app = typer.Typer(no_args_is_help=True, help="See and test alerts without Prometheus (docs/alerts.md).")

#: How long a test waits for the door that sends it: longer than a pass and all time limits of a try, in seconds.
_TEST_S = 45.0


@app.command("list")
def list_alerts(*, cell: CellName = None, state_dir: StateDir = None, json: Json = False) -> None:
    """List the conditions that hold, since when, and when they were told."""
    from shared.alerts.incidents import parse_incidents
    from shared.alerts.stored import StoredAlerts

    with reading_cells(state_dir, cell) as cells:
        now_ms = time.time_ns() // 1_000_000
        states = {name: parse_incidents(StoredAlerts(client).read(), now_ms) for name, client in cells.clients.items()}
        if json:
            found = [
                cells.as_dict(
                    name,
                    {"data": [vars(one) for one in state.open.values()], "tries": state.tries, "last": state.last},
                )
                for name, state in states.items()
            ]
            output.write_json({"cells": found} if cells.named else found[0])
            return
        rows = [
            cells.row(
                name,
                (
                    one.condition,
                    one.subject,
                    _time(one.since_ms),
                    _time(one.told_ms) if one.told_ms else "no",
                    one.text,
                ),
            )
            for name, state in states.items()
            for one in state.open.values()
        ]
        output.write_table(cells.columns(("condition", "subject", "since", "told", "text")), rows)
        for name, state in states.items():
            if state.tries:
                note = f"{state.tries} tries to send have failed, the last one with {state.last}"
                output.write_note(cells.note(name, note))


@app.command("test")
def send_test(*, cell: CellName = None, state_dir: StateDir = None) -> None:
    """Let the door that sends alerts send a test message now. Exit with 1 if it was not delivered within 45 s.

    Each cell has such a door, and one message is sent for each.
    """
    from shared.alerts.stored import StoredAlerts

    with writing_cells(state_dir, cell) as cells:
        asked = {name: (StoredAlerts(client), secrets.token_hex(8)) for name, client in cells.clients.items()}
        for stored, test in asked.values():
            stored.ask_for_test(test)
        ends_s = time.monotonic() + _TEST_S
        faults = {name: _fault_of_test(stored, test, ends_s) for name, (stored, test) in asked.items()}
        for name, fault in faults.items():
            output.write_note(cells.note(name, fault or "the test message was delivered"))
        if any(faults.values()):
            raise typer.Exit(FAULT)


def _fault_of_test(stored: "StoredAlerts", test: str, ends_s: float) -> str:
    """Return why a test was not delivered until a time of the monotonic clock, or "" if it was."""
    while (result := stored.result_of_test(test)) is None:
        if time.monotonic() >= ends_s:
            stored.drop_test()
            return f"no door has sent the test within {_TEST_S:.0f} s: none runs, or none has PENSTOCK_ALERT_URL"
        time.sleep(0.25)
    if result != "delivered":
        return f"the test message was not delivered: {result} (docs/alerts.md#when-a-message-does-not-arrive)"
    return ""


def _time(ms: int) -> str:
    return utc_time(ms).isoformat(timespec="seconds").replace("+00:00", "Z")

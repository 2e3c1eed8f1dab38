"""`penstock alerts`: which alerts are open, and a test message through the door."""

import secrets
import time

import typer

from shared.cli import output
from shared.cli.reach import FAULT, Json, StateDir, end_with, store_client, writable_store_client
from shared.durations import utc_time

app = typer.Typer(no_args_is_help=True, help="See and test alerts without Prometheus (docs/alerts.md).")

#: How long a test waits for the door that sends it: longer than a pass and all time limits of a try, in seconds.
_TEST_S = 45.0


@app.command("list")
def list_alerts(*, state_dir: StateDir = None, json: Json = False) -> None:
    """List the conditions that hold, since when, and when they were told."""
    from shared.alerts.incidents import parse_incidents
    from shared.alerts.stored import StoredAlerts

    state = parse_incidents(StoredAlerts(store_client(state_dir)).read(), time.time_ns() // 1_000_000)
    if json:
        output.write_json(
            {"data": [vars(one) for one in state.open.values()], "tries": state.tries, "last": state.last}
        )
        return
    rows = [
        (one.condition, one.subject, _time(one.since_ms), _time(one.told_ms) if one.told_ms else "no", one.text)
        for one in state.open.values()
    ]
    output.write_table(("condition", "subject", "since", "told", "text"), rows)
    if state.tries:
        output.write_note(f"{state.tries} tries to send have failed, the last one with {state.last}")


@app.command("test")
def send_test(*, state_dir: StateDir = None) -> None:
    """Let the door that sends alerts send a test message now. Exit with 1 if it was not delivered within 45 s."""
    from shared.alerts.stored import StoredAlerts

    stored, test = StoredAlerts(writable_store_client(state_dir)), secrets.token_hex(8)
    stored.ask_for_test(test)
    ends_s = time.monotonic() + _TEST_S
    while (result := stored.result_of_test(test)) is None:
        if time.monotonic() >= ends_s:
            stored.drop_test()
            end_with(
                f"no door has sent the test within {_TEST_S:.0f} s: none runs, or none has PENSTOCK_ALERT_URL", FAULT
            )
        time.sleep(0.25)
    if result != "delivered":
        end_with(f"the test message was not delivered: {result} (docs/alerts.md#when-a-message-does-not-arrive)", FAULT)
    output.write_note("the test message was delivered")


def _time(ms: int) -> str:
    return utc_time(ms).isoformat(timespec="seconds").replace("+00:00", "Z")

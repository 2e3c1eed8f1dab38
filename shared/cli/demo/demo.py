"""`penstock demo`: start a private stack, let one of three teams flood it, and show what each team sees."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from shared.cli import output
from shared.cli.reach import Json, end_with

if TYPE_CHECKING:
    from shared.cli.demo.clients import Clients
    from shared.cli.demo.display import Display
    from shared.cli.demo.ledger import Ledger
    from shared.cli.demo.private_stack import PrivateStack

#: The name under which the demo model is served.
_MODEL = "penstock-demo"
#: The part of the demo's length that passes before the flood.
_CALM_PART = 0.3
#: Seconds between two updates of the display, and seconds in which the clients may read their last answers.
_UPDATE_EVERY_S, _LAST_ANSWERS_S = 0.5, 30.0
_INTERRUPTED = 130


def demo(
    *,
    seconds: Annotated[
        int, typer.Option(min=5, max=3600, help="How long the clients send. The flood begins after 30 % of it.")
    ] = 40,
    flooders: Annotated[int, typer.Option(min=1, max=200, help="How many clients flood.")] = 48,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the door. 0: any free port.")] = 0,
    seed: Annotated[int, typer.Option(help="Chooses the order of the prompts.")] = 11,
    json: Json = False,
) -> None:
    """Start everything with three teams, let one of them flood it, and show what each team sees.

    It uses the demo model, a store of its own and none of your settings. When it ends, nothing is left.
    """
    from shared.cli.demo.ledger import Ledger, Team
    from shared.cli.demo.private_stack import PrivateStack
    from shared.cli.stack.extras import require_extra

    require_extra("web")
    require_extra("worker")
    ledger = Ledger(
        (
            Team("red", weight=1, clients=1, pause_s=0.5, flooders=flooders),
            Team("green", weight=1, clients=2, pause_s=0.5),
            Team("blue", weight=2, clients=6, pause_s=0.0),
        )
    )
    interrupted = False
    try:
        with PrivateStack(port) as stack:
            _play(stack, ledger, seconds=seconds, seed=seed)
    except KeyboardInterrupt:
        interrupted = True
    _write_result(ledger, seconds, seed, interrupted=interrupted, json=json)
    if interrupted:
        raise typer.Exit(_INTERRUPTED)
    if ledger.faults():
        end_with(f"penstock: {ledger.faults()} requests had no proper answer; the last: {ledger.last_fault}")


def _play(stack: "PrivateStack", ledger: "Ledger", *, seconds: int, seed: int) -> None:
    """Let the clients send for `seconds`. Raises PenstockError if the stack ends meanwhile."""
    from shared.cli.demo.clients import Clients
    from shared.cli.demo.display import Display, LiveTable

    output.write_note("penstock: starting a store, a door and a worker with the demo model ...")
    stack.wait_until_ready()
    api_keys = stack.add_teams(ledger.teams)
    clients = Clients(stack.url, _MODEL, api_keys, ledger, seed=seed)
    console = f"penstock: watch it with any user name: {stack.url}/console\n          password: {stack.admin_key()}"
    display = (LiveTable if sys.stderr.isatty() else Display)(console)
    try:
        _run_phases(stack, ledger, clients, display, seconds)
    finally:
        display.close()


def _run_phases(stack: "PrivateStack", ledger: "Ledger", clients: "Clients", display: "Display", seconds: int) -> None:
    began_s = time.monotonic()

    def show_until(end_s: float, *, goes_on: Callable[[], bool] = lambda: True) -> None:
        while goes_on() and (elapsed_s := time.monotonic() - began_s) < end_s:
            stack.require_alive()
            display.update(ledger, elapsed_s)
            time.sleep(min(_UPDATE_EVERY_S, end_s - elapsed_s))

    clients.start()
    show_until(seconds * _CALM_PART)
    ledger.enter("flood")
    clients.start_flood()
    show_until(seconds)
    ledger.enter("end")
    clients.stop()
    show_until(seconds + _LAST_ANSWERS_S, goes_on=clients.are_reading)


def _write_result(ledger: "Ledger", seconds: int, seed: int, *, interrupted: bool, json: bool) -> None:
    """Write what the clients saw to stdout."""
    from shared.cli.demo.display import write_summary

    if json:
        phases = {phase: ledger.summary(phase) for phase in ("before_flood", "flood")}
        facts = {"seconds": seconds, "seed": seed, "interrupted": interrupted, "faults": ledger.faults()}
        output.write_json(facts | phases)
        return
    write_summary(ledger)
    output.write_data(
        "The figures are the clients' own. 1st token: the median time from a request to\n"
        "its first token. Share: of the tokens that arrived in this time. Refused clients\n"
        "came back after the time that they were told."
    )

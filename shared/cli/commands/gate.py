"""`penstock gate`: become the TCP gate, by executing it and never by importing it."""

from typing import Annotated

import typer

from shared.cli.commands.rooms import TakeOver, become, need
from shared.settings.settings import load


def gate(
    *,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="PENSTOCK_GATE_LISTEN; 127.0.0.1:7070 unless named.")
    ] = None,
    take_over: TakeOver = False,
) -> None:
    """Run the TCP gate alone, with the settings in force."""
    need("gevent", "web")
    become(["web.gate"], load(gate_listen=listen), take_over=take_over)

"""Run the TCP gate as a process: read the settings, connect to the store and serve until a signal arrives."""

import gc

# Nothing is garbage until all modules are loaded. Each collection before would visit all their objects.
gc.disable()

from web.server import gevent_patches  # noqa: E402 - see above

gevent_patches.apply()

import os  # noqa: E402 - nothing may be imported before the patches
import signal  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
from collections.abc import Callable  # noqa: E402
from functools import partial  # noqa: E402

import gevent  # noqa: E402

# The gate is one process. With a folder that is meant for other programs, prometheus-client would keep its metrics
# there.
os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)

from shared import log as logging  # noqa: E402
from shared.clock import RealClock  # noqa: E402
from shared.errors import ConfigError, StoreUnavailable  # noqa: E402
from web.gate.connection import bounds_of  # noqa: E402
from web.gate.health import start_health  # noqa: E402
from web.gate.server import GRACE_S, Gate  # noqa: E402
from web.runtime.cell_watch import CellWatch  # noqa: E402
from web.runtime.context import DoorContext  # noqa: E402
from web.runtime.start import (  # noqa: E402
    EXIT_CONFIG,
    configure_store,
    open_store,
    raise_file_limit,
    read_settings,
    start_duties,
)

gc.freeze()
gc.enable()


def main() -> int:
    """Serve until SIGTERM or SIGINT and return the exit code.

    After the first signal, the gate waits up to GRACE_S seconds for its jobs in flight to end. A second signal ends the
    wait. The gate also stops if the store is unfit or was configured with other system-wide settings.
    """
    settings = read_settings()
    logging.configure(settings.log_level, settings.log_format, room="gate", pid=os.getpid())
    raise_file_limit()
    store = open_store(settings)
    try:
        configure_store(settings, store)
    except StoreUnavailable as error:
        sys.stderr.write(f"penstock gate: {error}; jobs are refused until it answers\n")
    try:
        return _serve(DoorContext(settings, store, RealClock()))
    except ConfigError as error:
        sys.stderr.write(f"penstock gate: {error}\n")
        return EXIT_CONFIG


def _serve(context: DoorContext) -> int:
    settings = context.settings
    signals_received, settings_conflict = 0, False
    stop = threading.Event()

    def on_signal() -> None:
        nonlocal signals_received
        signals_received += 1
        stop.set()

    def on_settings_conflict() -> None:
        nonlocal settings_conflict
        settings_conflict = True
        stop.set()

    gate = Gate(context, settings.gate_host_port, bounds_of(settings))
    gate.start()
    if settings.gate_metrics_listen:
        start_health(context, gate, settings.gate_metrics_host_port)
    CellWatch(context, partial(_start_cell, on_settings_conflict)).begin()
    for number in (signal.SIGTERM, signal.SIGINT):
        gevent.signal_handler(number, on_signal)
    stop.wait()
    gate.stop(GRACE_S, stop_now=lambda: signals_received > 1)
    context.traces.close()
    return EXIT_CONFIG if settings_conflict else 0


def _start_cell(on_conflict: Callable[[], None], context: DoorContext) -> None:
    """Start the duties of one cell. `on_conflict` stops the gate if the cell is that of its own store."""
    stop = on_conflict if context is context.cells.first else partial(context.cells.leave_out, context)
    start_duties(context.settings, context.store, on_fatal_error=stop, closed=context.closed)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Exit without waiting for the greenlets that follow jobs, because these may be blocked on the store.
    os._exit(code)

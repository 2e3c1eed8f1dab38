"""The TCP gate as a process: gevent's patches first, then settings from the environment → a listening gate."""

from gevent import monkey

monkey.patch_all()

import os  # noqa: E402 - nothing may be imported before the patches
import signal  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402

import gevent  # noqa: E402

from shared import log as logging  # noqa: E402
from shared.clock import RealClock  # noqa: E402
from shared.errors import ConfigError, StoreUnavailable  # noqa: E402
from web.gate.health import start_health  # noqa: E402
from web.gate.server import GRACE_S, Gate, bounds_of  # noqa: E402
from web.runtime.context import DoorContext, make_door_context  # noqa: E402
from web.runtime.duties import start_duties  # noqa: E402
from web.runtime.start import EXIT_CONFIG, configure_store, open_store, raise_file_limit, read_settings  # noqa: E402


def main() -> int:
    """Serve until SIGTERM or SIGINT; the exit code. A second signal ends it without waiting for what is in flight."""
    settings = read_settings()
    logging.configure(settings.log_level, settings.log_format, room="gate", pid=os.getpid())
    raise_file_limit()
    store = open_store(settings)
    try:
        configure_store(settings, store)
    except StoreUnavailable as error:
        sys.stderr.write(f"penstock gate: {error}; jobs are refused until it answers\n")
    try:
        return _serve(make_door_context(settings, store, RealClock()))
    except ConfigError as error:
        sys.stderr.write(f"penstock gate: {error}\n")
        return EXIT_CONFIG


def _serve(context: DoorContext) -> int:
    settings = context.settings
    asked, disagreed = [], threading.Event()
    stop = threading.Event()

    def on_signal() -> None:
        asked.append(True)
        stop.set()

    def on_disagreement() -> None:
        disagreed.set()
        stop.set()

    gate = Gate(context, settings.gate_host_port, bounds_of(settings))
    gate.start()
    if settings.gate_metrics_listen:
        start_health(context, gate, settings.gate_metrics_host_port)
    start_duties(settings, context.store, end=on_disagreement)
    for number in (signal.SIGTERM, signal.SIGINT):
        gevent.signal_handler(number, on_signal)
    stop.wait()
    gate.stop(GRACE_S, lambda: len(asked) > 1)
    return EXIT_CONFIG if disagreed.is_set() else 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Greenlets that follow jobs may still wait for the store; nobody waits for them.
    os._exit(code)

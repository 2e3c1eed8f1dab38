"""The duties of one door process: configure the store as soon as it answers, then reap and sweep in an endless loop."""

import threading
import time
from collections.abc import Callable

from shared.audit.sweeper import PERIOD_S, Sweeper
from shared.errors import StoreUnavailable
from shared.log import get_logger
from shared.settings.settings import Settings
from shared.store.reaper import Reaper
from shared.store.store import Store
from web.runtime.disk_threads import in_disk_thread
from web.runtime.start import configure_store

log = get_logger()

#: How long to wait before the next attempt while the store does not answer, in seconds.
AWAY_S = 0.25
#: The minimum time between two log lines about a store that does not answer, in seconds.
_LOG_INTERVAL_S = 10.0


def start_duties(
    settings: Settings, store: Store, *, on_fatal_error: Callable[[], None], serves_files: bool = False
) -> None:
    """Start a thread that configures the store as soon as the store answers, and then reaps and sweeps without end.

    The thread calls `on_fatal_error` if the store is unfit or was configured with different system-wide settings.
    """
    arguments = {"settings": settings, "store": store, "on_fatal_error": on_fatal_error, "serves_files": serves_files}
    threading.Thread(target=_run_duties, kwargs=arguments, name="duties", daemon=True).start()


def _run_duties(*, settings: Settings, store: Store, on_fatal_error: Callable[[], None], serves_files: bool) -> None:
    _configure_with_retries(settings, store, on_fatal_error, serves_files=serves_files)
    reaper, sweeper = Reaper(store), Sweeper(store)
    next_sweep_s = time.monotonic() + PERIOD_S
    never_set = threading.Event()
    while True:
        try:
            rest_s = reaper.one_pass()
            if time.monotonic() >= next_sweep_s:
                next_sweep_s = time.monotonic() + PERIOD_S
                sweeper.one_pass()
        except StoreUnavailable:
            rest_s = AWAY_S
        except Exception:
            # Without reaping, jobs would not end at their deadlines, so the loop continues after any error.
            log.exception("reaper.failed")
            rest_s = AWAY_S
        never_set.wait(rest_s)


def _configure_with_retries(
    settings: Settings, store: Store, on_fatal_error: Callable[[], None], *, serves_files: bool
) -> None:
    next_log_s = 0.0
    while True:
        try:
            configure_store(settings, store, serves_files=serves_files, run=in_disk_thread)
        except StoreUnavailable as error:
            if time.monotonic() >= next_log_s:
                log.warning("store.awaited", error=str(error))
                next_log_s = time.monotonic() + _LOG_INTERVAL_S
            threading.Event().wait(AWAY_S)
        except SystemExit:
            # SystemExit would end only this thread, so `on_fatal_error` must stop the process.
            on_fatal_error()
            raise
        else:
            return

"""From the environment to a serving door: settings, store, app, and the duties of an ingress process."""

import os
import signal
import threading
import time
from collections.abc import Callable

import structlog
from apiflask import APIFlask

from shared import log as logging
from shared.clock import RealClock
from shared.config import Settings, load
from shared.errors import StoreUnavailable
from shared.reaping import Reaping
from shared.store import Store
from web.app import create_app
from web.start import agree, open_store

log = structlog.get_logger()

#: While the store is away.
AWAY_S = 0.25
#: And it is said so seldom, in seconds.
_TELL_S = 10.0


def boot() -> APIFlask:
    """The app of one ingress process, its duties running."""
    settings = load()
    logging.configure(settings.log_level, settings.log_format, room="web", pid=os.getpid())
    store = open_store(settings)
    app = create_app(settings, store, RealClock())
    start_duties(settings, store, end=_end_all)
    return app


def start_duties(settings: Settings, store: Store, *, end: Callable[[], None]) -> None:
    """Agree with the store as soon as it answers, then reap for ever; `end` ends the door when they cannot agree."""
    threading.Thread(target=_duties, args=(settings, store, end), name="duties", daemon=True).start()


def _end_all() -> None:
    # All processes of this ingress have the same settings.
    os.kill(os.getppid(), signal.SIGTERM)


def _duties(settings: Settings, store: Store, end: Callable[[], None]) -> None:
    _until_done(lambda: agree(settings, store), end)
    reaping = Reaping(store)
    rest = threading.Event()
    while True:
        try:
            rest_s = reaping.one_pass()
        except StoreUnavailable:
            rest_s = AWAY_S
        except Exception:
            # Without reaping nothing ends in time: whatever it was, the next pass is tried.
            log.exception("reaper.failed")
            rest_s = AWAY_S
        rest.wait(rest_s)


def _until_done(attempt: Callable[[], None], end: Callable[[], None]) -> None:
    tell_at_s = 0.0
    while True:
        try:
            attempt()
        except StoreUnavailable as error:
            if time.monotonic() >= tell_at_s:
                log.warning("store.awaited", error=str(error))
                tell_at_s = time.monotonic() + _TELL_S
            threading.Event().wait(AWAY_S)
        except SystemExit:
            # Raised on a thread it would end nothing.
            end()
            raise
        else:
            return

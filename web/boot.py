"""From the environment to a serving door: settings, store, app, and the duties of an ingress process."""

import os
import signal
import threading
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


def boot() -> APIFlask:
    """The app of one ingress process, its duties running."""
    settings = load()
    logging.configure(settings.log_level, settings.log_format, room="web", pid=os.getpid())
    store = open_store(settings)
    app = create_app(settings, store, RealClock())
    threading.Thread(target=_duties, args=(settings, store), name="duties", daemon=True).start()
    return app


def _duties(settings: Settings, store: Store) -> None:
    _until_done(lambda: agree(settings, store))
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


def _until_done(attempt: Callable[[], None]) -> None:
    while True:
        try:
            attempt()
        except StoreUnavailable as error:
            log.warning("store.awaited", error=str(error))
            threading.Event().wait(AWAY_S)
        except SystemExit:
            # Raised on a thread it would end nothing; all processes of this ingress have the same settings.
            os.kill(os.getppid(), signal.SIGTERM)
            raise
        else:
            return

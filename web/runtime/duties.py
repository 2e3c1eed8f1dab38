"""The duties of an ingress process: agree with the store, then reap as long as it lives."""

import threading
import time
from collections.abc import Callable

import structlog

from shared.errors import StoreUnavailable
from shared.settings.settings import Settings
from shared.store.reaper import Reaper
from shared.store.store import Store
from web.runtime.start import configure_store

log = structlog.get_logger()

#: While the store is away.
AWAY_S = 0.25


#: And it is said so seldom, in seconds.
_TELL_S = 10.0


def start_duties(settings: Settings, store: Store, *, end: Callable[[], None]) -> None:
    """Agree with the store as soon as it answers, then reap for ever; `end` ends the door when they cannot agree."""
    threading.Thread(target=_duties, args=(settings, store, end), name="duties", daemon=True).start()


def _duties(settings: Settings, store: Store, end: Callable[[], None]) -> None:
    _until_done(lambda: configure_store(settings, store), end)
    reaping = Reaper(store)
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

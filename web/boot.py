"""From the environment to a serving door: settings, store, app, and the duties of an ingress process."""

import os
import signal

import structlog
from apiflask import APIFlask

from shared import log as logging
from shared.clock import RealClock
from shared.settings.settings import load
from web.app import create_app
from web.runtime.duties import start_duties
from web.runtime.start import open_store

log = structlog.get_logger()


def boot() -> APIFlask:
    """The app of one ingress process, its duties running."""
    settings = load()
    logging.configure(settings.log_level, settings.log_format, room="web", pid=os.getpid())
    store = open_store(settings)
    app = create_app(settings, store, RealClock())
    start_duties(settings, store, end=_end_all)
    return app


def _end_all() -> None:
    # All processes of this ingress have the same settings.
    os.kill(os.getppid(), signal.SIGTERM)

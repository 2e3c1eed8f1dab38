"""Start one HTTP process: read the settings, open the store, create the app and start the duties."""

import atexit
import os
import signal

from apiflask import APIFlask

from shared import log as logging
from shared.clock import RealClock
from shared.log import get_logger
from shared.settings.settings import load
from web.app import create_app
from web.batches.feeder import start_feeding
from web.runtime.current import EXTENSION_NAME
from web.runtime.start import open_store, start_duties
from web.vector_stores.loader import start_loading
from web.webhooks.alerter import Alerter
from web.webhooks.sender import WebhookSender

log = get_logger()


def boot() -> APIFlask:
    """Create the app of one HTTP process, start the duties of the process, and return the app."""
    settings = load()
    logging.configure(settings.log_level, settings.log_format, room="web", pid=os.getpid())
    store = open_store(settings)
    app = create_app(settings, store, RealClock())
    start_duties(settings, store, on_fatal_error=_stop_gunicorn, serves_files=True)
    start_feeding(app.extensions[EXTENSION_NAME])
    start_loading(app.extensions[EXTENSION_NAME])
    atexit.register(app.extensions[EXTENSION_NAME].traces.close)
    atexit.register(app.extensions[EXTENSION_NAME].repeated_refusals.count_now)
    WebhookSender(app.extensions[EXTENSION_NAME]).start()
    Alerter(app.extensions[EXTENSION_NAME]).start()
    return app


def _stop_gunicorn() -> None:
    # The parent is gunicorn's master process. Its worker processes all have the same settings and would all fail, so
    # the whole server is stopped.
    os.kill(os.getppid(), signal.SIGTERM)

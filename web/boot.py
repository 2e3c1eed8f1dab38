"""Start one HTTP process: read the settings, open the store, create the app and start the duties."""

import atexit
import os
import signal
from functools import partial

from apiflask import APIFlask

from shared import log as logging
from shared.clock import RealClock
from shared.log import get_logger
from shared.settings.settings import load
from web.app import create_app
from web.batches.feeder import start_feeding
from web.runtime.budget_exchange import BudgetExchange
from web.runtime.cell_watch import CellWatch
from web.runtime.context import DoorContext
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
    app = create_app(settings, open_store(settings), RealClock())
    context: DoorContext = app.extensions[EXTENSION_NAME]
    CellWatch(context, _start_cell).begin()
    BudgetExchange(context.cells).start()
    start_loading(context)
    atexit.register(context.traces.close)
    atexit.register(_count_refusals, context)
    return app


def _start_cell(context: DoorContext) -> None:
    """Start what this process does for one cell, until the cell leaves the directory."""
    first = context.cells.first
    stop = _stop_gunicorn if context is first else partial(context.cells.leave_out, context)
    start_duties(
        context.settings,
        context.store,
        on_fatal_error=stop,
        serves_files=True,
        knows_cell=context.cells.is_read,
        closed=context.closed,
    )
    start_feeding(context)
    WebhookSender(context).start()
    Alerter(context).start()


def _count_refusals(context: DoorContext) -> None:
    for one in context.cells.present():
        one.repeated_refusals.count_now()


def _stop_gunicorn() -> None:
    # The parent is gunicorn's master process. Its worker processes all have the same settings and would all fail, so
    # the whole server is stopped.
    os.kill(os.getppid(), signal.SIGTERM)

"""The duty that feeds batches: each HTTP process claims one batch after the other for a turn, in a thread.

The thread also removes the contents of expired files from the folder, if files are kept in one.
"""

import secrets
import threading
import time

from shared.errors import StoreUnavailable
from shared.log import get_logger
from shared.store.batches.batches import Batches, ClaimLost
from shared.store.batches.storage_location import remove_old_files
from web.batches.turn import take_turn
from web.http import shutdown
from web.runtime.context import DoorContext

log = get_logger()

#: The longest wait before a process looks whether a batch is due, and the wait after an error, in seconds.
_LOOK_S, _AFTER_ERROR_S = 1.0, 1.0
#: How often a process removes the contents of expired files from the folder, in seconds.
CLEAR_EVERY_S = 600.0


def start_feeding(context: DoorContext) -> None:
    """Start the thread."""
    threading.Thread(target=_run, args=(context,), name="batches", daemon=True).start()


def feed_once(context: DoorContext) -> float:
    """Take a turn for the batch that is due, if there is one; return the seconds to wait.

    Raises StoreUnavailable.
    """
    claimed = Batches(context.store.client).claim(secrets.token_hex(8), lease_ms=context.settings.lease_ms)
    if claimed is None:
        return _LOOK_S
    if isinstance(claimed, int):
        return min(_LOOK_S, claimed / 1000)
    try:
        take_turn(context, claimed)
    except ClaimLost:
        log.warning("batch.claim_lost", batch=claimed.batch.id)
    return 0.0


def clear_folder(context: DoorContext) -> None:
    """Remove the contents of expired files from the folder, if there is one."""
    folder = context.files.folder
    if folder is None:
        return
    try:
        removed = remove_old_files(context.store.client, folder)
    except StoreUnavailable as error:
        log.warning("files.not_cleared", error=str(error))
    else:
        log.info("files.cleared", removed=removed)


def _run(context: DoorContext) -> None:
    never_set = threading.Event()
    next_clearing_s = time.monotonic() + CLEAR_EVERY_S
    while not shutdown.requested.is_set():
        if time.monotonic() >= next_clearing_s:
            next_clearing_s = time.monotonic() + CLEAR_EVERY_S
            clear_folder(context)
        try:
            rest_s = feed_once(context)
        except StoreUnavailable:
            rest_s = _AFTER_ERROR_S
        except Exception:
            # The batch is due again when the claim has ended; the others must not wait for it.
            log.exception("batch.fault")
            rest_s = _AFTER_ERROR_S
        if rest_s > 0:
            never_set.wait(rest_s)

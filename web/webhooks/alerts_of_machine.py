"""The alerts that need no store: one process of a machine tells that the store is away, and that it is back.

The processes of a machine share a state folder, with a file for each cell. The process that has locked the file, which
the kernel unlocks when the process ends, keeps in it what it has told. If the folder cannot be used, each process tells
for itself.
"""

import contextlib
import fcntl
import os
from pathlib import Path

from shared.alerts.incidents import Incidents, parse_incidents
from shared.cells.ids import DEFAULT_CELL
from shared.log import get_logger

log = get_logger()

#: The longest state that is read, in bytes. This alone is written: two incidents.
_MAX_BYTES = 65_536


class AlertsOfMachine:
    """The state of alerts that the processes of this machine share."""

    def __init__(self, folder: Path, cell: str = DEFAULT_CELL) -> None:
        self._path = folder / ("alerts.json" if cell == DEFAULT_CELL else f"alerts-{cell}.json")
        #: The open file that this process has locked; None before.
        self._locked: int | None = None
        self._is_usable = True
        self._state = ""

    def is_ours(self) -> bool:
        """Return whether this process tells for its machine."""
        if self._locked is not None or not self._is_usable:
            return True
        try:
            opened = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            log.warning("alerts.folder", problem=error.strerror, folder=str(self._path.parent))
            self._is_usable = False
            return True
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(opened)
            return False
        self._locked = opened
        self._state = os.pread(opened, _MAX_BYTES, 0).decode("utf-8", "replace")
        return True

    def close(self) -> None:
        """Unlock the file, as the end of the process does."""
        if self._locked is not None:
            os.close(self._locked)
            self._locked = None

    def read(self, now_ms: int) -> Incidents:
        return parse_incidents(self._state, now_ms)

    def write(self, state: Incidents) -> None:
        """Keep the state, also in the file. A full disk does not end the alerts: it can be why the store is away."""
        text = state.as_text()
        if text == self._state:
            return
        self._state = text
        if self._locked is not None:
            with contextlib.suppress(OSError):
                content = text.encode("utf-8", "replace")
                os.pwrite(self._locked, content, 0)
                os.ftruncate(self._locked, len(content))

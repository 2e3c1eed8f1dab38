"""Follows the directory of cells in one process of the door, and opens and starts what each cell needs."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Final

import redis

from shared.accounts.admin_actions import Actor
from shared.cells.account_changes import AccountCells
from shared.cells.directory import CellRecord, Directory
from shared.cells.opening import lost_directory, own_name, remember, remembered, settings_of_cell
from shared.cells.stored import NO_STAMP, StoredDirectory, ask_all, bring_up_to_date
from shared.errors import ConfigError, StoreUnavailable
from shared.log import LimitedEvent
from shared.store.connection import DOOR
from web.runtime.context import DoorContext
from web.runtime.start import open_store

_FAULT = LimitedEvent("cells.fault", interval_s=60)
_SPOILED = LimitedEvent("cells.spoiled", interval_s=60)

#: The time between two looks for a new directory, and between two checks of cells that are away, in seconds.
LOOK_S: Final = 1.0
_CHECK_S: Final = 0.25
#: The shortest time between two checks, in seconds.
_LEAST_PAUSE_S: Final = 0.05
#: How often older copies of the directory are brought up to date, in seconds. One that was away gets its copy then.
_REPAIR_S: Final = 10.0


class CellWatch:
    """Follows the directory for the contexts of one process."""

    def __init__(self, first: DoorContext, start: Callable[[DoorContext], None]) -> None:
        """`first` is the first context of the process. `start` is called once with each context that is served."""
        self._first, self._cells, self._start = first, first.cells, start
        self._started: set[DoorContext] = set()
        #: This event is never set. Waiting for it is a sleep.
        self._pause = threading.Event()
        #: How often the directory was looked for.
        self._looks = 0

    def begin(self) -> None:
        """Read the directory, start what the cells need, and follow the directory from then on in a thread.

        While neither the store nor the copy in the state folder can be read, no job is admitted.
        """
        self._cells.is_read = False
        self.look()
        if not self._cells.is_read:
            directory = remembered(self._first.settings)
            if directory is not None:
                self._adopt(directory)
                # Its store has just not answered, so that no request must wait for it.
                self._cells.note_away(self._first)
        elif self._cells.directory is None:
            lost = lost_directory(self._first.settings, DOOR, name="penstock-web")
            if lost is not None:
                self._adopt(lost)
        if not self._cells.is_read:
            # The duties of this store must begin: they wait for it.
            self._start_new()
        threading.Thread(target=self._run, name="cells", daemon=True).start()

    def look(self) -> None:
        """Adopt the directory that a cell has, another one each time, if it is newer than the one in force.

        Usually, all cells have the same. After a change that did not reach all of them, one of them has a newer one.
        """
        known, contexts = self._cells.directory, self._cells.all()
        begin, self._looks = self._looks % len(contexts), self._looks + 1
        any_failed = False
        for context in sorted(contexts[begin:] + contexts[:begin], key=self._cells.is_away):
            if any_failed and self._cells.is_away(context):
                continue
            stored = StoredDirectory(context.store.client)
            try:
                found = stored.read() if stored.stamp() > (known.stamp if known else NO_STAMP) else None
                if found is not None:
                    self._adopt(found)
                    remember(self._first.settings, found)
                elif not self._cells.is_read:
                    self._cells.is_read = True
                    self._start_new()
            except StoreUnavailable:
                self._cells.note_away(context)
                if not any_failed:
                    # Others may hang too, and each would be waited for.
                    any_failed = True
                    self._cells.suspect(*contexts)
                    self._cells.check_suspects()
            except ConfigError as error:
                _SPOILED.log("error", cell=context.cell, error=str(error))
            else:
                return

    def repair(self, directory: Directory) -> None:
        """Bring the copies of the directory up to date, and the accounts of cells that have missed a change."""
        clients = self._clients()
        stamps = ask_all(clients, lambda client: StoredDirectory(client).stamp()).answers
        # A store without a copy has lost its data, the accounts included, or is new.
        AccountCells(clients).note_missed([name for name, stamp in stamps.items() if stamp == NO_STAMP])
        # Of one cell, the copy was removed by an operator who has ended the directory.
        missed = bring_up_to_date(directory, clients) if len(directory.cells) > 1 else ()
        self._cells.suspect(*(one for one in self._cells.all() if one.cell in missed))
        AccountCells(clients).repair(Actor("door", socket.gethostname()))
        self.look_for_lacking()

    def look_for_lacking(self) -> None:
        """Note which cells may lack a change of accounts, so that they are asked for keys only if no other answers."""
        clients = self._clients()
        if clients:
            self._cells.lacking = AccountCells(clients).missed()

    def _adopt(self, directory: Directory) -> None:
        self._cells.adopt(directory, self._make, own_name(directory, self._first.process.settings))
        self._cells.is_read = True
        self._start_new()

    def _make(self, record: CellRecord) -> DoorContext:
        process, clock = self._first.process, self._first.clock
        settings = settings_of_cell(process.settings, record)
        return DoorContext(settings, open_store(settings), clock, cell=record.name, process=process)

    def _start_new(self) -> None:
        served = set(self._cells.all())
        for context in served - self._started:
            self._start(context)
        self._started = served

    def _run(self) -> None:
        next_look_s = time.monotonic() + LOOK_S
        next_repair_s = time.monotonic() + _REPAIR_S
        while True:
            until_look_s = max(0.0, next_look_s - time.monotonic())
            hurries = self._cells.any_away or not self._cells.is_read
            self._cells.has_suspects.wait(min(_CHECK_S, until_look_s) if hurries else until_look_s)
            # So often at most are stores asked, however many requests fail.
            self._pause.wait(_LEAST_PAUSE_S)
            try:
                self._cells.check_suspects()
                if time.monotonic() >= next_look_s or not self._cells.is_read:
                    next_look_s = time.monotonic() + LOOK_S
                    self.look()
                    if self._cells.directory is not None:
                        self.look_for_lacking()
                directory = self._cells.directory
                if directory is not None and time.monotonic() >= next_repair_s and self._clients():
                    next_repair_s = time.monotonic() + _REPAIR_S
                    self.repair(directory)
            except Exception:  # noqa: BLE001 - it is logged, but not each time
                _FAULT.log("error", exc_info=True)

    def _clients(self) -> dict[str, redis.Redis]:
        """Return the clients of the cells that are not away, by name."""
        return {one.cell: one.store.client for one in self._cells.all() if not self._cells.is_away(one)}

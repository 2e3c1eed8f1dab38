"""The duty of a process of the door to tell the cells what is used of budgets elsewhere."""

import threading
import time

from shared.cells.spending import INTERVAL_S, SpendingExchange
from shared.log import LimitedEvent
from web.runtime.cells import C, DoorCells

_AWAY = LimitedEvent("budgets.cell_away", interval_s=60)
_FAULT = LimitedEvent("budgets.fault", interval_s=60)


class BudgetExchange:
    """Makes a pass over all cells every INTERVAL_S, if no other process does. Without a directory, it does nothing."""

    def __init__(self, cells: DoorCells[C]) -> None:
        self._cells, self._exchange = cells, SpendingExchange()

    def start(self) -> None:
        """Make the passes in a thread."""
        threading.Thread(target=self._run, name="budgets", daemon=True).start()

    def one_pass(self) -> None:
        """Make one pass over the cells that are not known to be away."""
        if self._cells.directory is None:
            return
        clients = {one.cell: one.store.client for one in self._cells.all() if not self._cells.is_away(one)}
        done = self._exchange.exchange(clients)
        for name, error in done.away.items() if done is not None else ():
            _AWAY.log("warning", cell=name, error=str(error))
            if (context := self._cells.named(name)) is not None:
                self._cells.suspect(context)

    def _run(self) -> None:
        while True:
            time.sleep(INTERVAL_S)
            try:
                self.one_pass()
            except Exception:  # noqa: BLE001 - it is logged, but not each time
                _FAULT.log("error", exc_info=True)

"""The fleet metrics of all cells on one page, with the label `cell`."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Generic, Protocol, TypeVar

from prometheus_client.core import GaugeMetricFamily, Metric

from shared.clock import Clock
from shared.errors import StoreUnavailable
from shared.metrics.fleet import CELL_UP
from web.runtime.cells import DoorCells, ServedCell
from web.runtime.fleet_metrics import CONTENT_TYPES, FleetPage, Format, ReadFamilies, encoded, with_pauses
from web.runtime.shared_answer import SharedAnswer


class MeasuredCell(ServedCell, Protocol):
    """The parts of a DoorContext that are used here."""

    fleet_page: FleetPage


C = TypeVar("C", bound=MeasuredCell)


class FleetOfCells(Generic[C]):
    """Renders the page. Scrapes of the same second share one."""

    def __init__(self, cells: DoorCells[C], clock: Clock) -> None:
        self._cells = cells
        self._pages: dict[Format, SharedAnswer[bytes]] = {
            each: SharedAnswer(partial(self._encode, each), clock) for each in CONTENT_TYPES
        }

    def render(self, page_format: Format) -> bytes:
        """Return the page. Without a directory of cells, it is that of the only cell, and raises StoreUnavailable."""
        if self._cells.directory is None:
            return self._cells.first.fleet_page.render(page_format)
        return self._pages[page_format].get()

    def _encode(self, page_format: Format) -> bytes:
        read: dict[str, ReadFamilies | None] = {}
        for context in self._cells.all():
            try:
                is_away = self._cells.is_away(context)
                read[context.cell] = None if is_away else context.fleet_page.families.get()
            except StoreUnavailable:
                read[context.cell] = None
        return encoded(ReadFamilies(_merged(read)), page_format)


def _merged(read: Mapping[str, ReadFamilies | None]) -> Iterator[Metric]:
    """Yield the families of all cells; a cell whose store did not answer has None."""
    up = GaugeMetricFamily(CELL_UP.name, CELL_UP.help, labels=CELL_UP.labels)
    merged: dict[str, Metric] = {}
    for cell, families in read.items():
        up.add_metric([cell], families is not None)
        for family in families.collect() if families is not None else ():
            one = Metric(family.name, family.documentation, family.type, family.unit)
            samples = merged.setdefault(family.name, one).samples
            # The families are shared with other pages.
            samples.extend(
                sample._replace(labels={"cell": cell} | sample.labels) for sample in with_pauses(family.samples)
            )
    yield from merged.values()
    yield up

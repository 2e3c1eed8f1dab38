"""Sequence ids and KV cells: what is taken, what is free, and the audit of both."""

from shared.errors import PenstockError


class BooksBroken(PenstockError):
    """Slots or cells do not add up: the engine must not go on."""


class Slots:
    """The engine's two budgets. Only the engine's thread touches it.

    A job holds one slot and as many cells as its prompt and its longest answer may fill, from its
    first step to its end, so that no running job can ever lack a cell. Always: free + used == total,
    for slots and for cells.
    """

    def __init__(self, slots: int, cells: int) -> None:
        if slots < 1 or cells < 1:
            raise ValueError(f"an engine needs a slot and a cell: slots={slots}, cells={cells}")
        self.total_slots, self.total_cells = slots, cells
        #: The lowest number is taken first, so that a lightly used engine keeps to few sequences.
        self._free = list(range(slots - 1, -1, -1))
        self._cells_free = cells
        self._held: dict[int, int] = {}

    @property
    def free_slots(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    @property
    def free_cells(self) -> int:
        """Cells that nobody holds."""
        return self._cells_free

    def fits(self, cells: int) -> bool:
        """Whether `take(cells)` would succeed now."""
        return bool(self._free) and cells <= self._cells_free

    def take(self, cells: int) -> int:
        """A free slot with `cells` cells. Raises BooksBroken when it does not fit: ask `fits` first."""
        if not self.fits(cells):
            raise BooksBroken(f"took {cells} cells of {self._cells_free} free, {self.free_slots} slots free")
        slot = self._free.pop()
        self._held[slot] = cells
        self._cells_free -= cells
        return slot

    def give_back(self, slot: int) -> None:
        """Free a slot and its cells. Raises BooksBroken when nobody holds it."""
        if slot not in self._held:
            raise BooksBroken(f"slot {slot} was given back and nobody held it")
        self._cells_free += self._held.pop(slot)
        self._free.append(slot)
        self._free.sort(reverse=True)

    def check_integrity(self, running: int | None = None) -> None:
        """Raise BooksBroken unless free + used == total; with `running`, also that so many are held."""
        used = sum(self._held.values())
        if self._cells_free + used != self.total_cells or self._cells_free < 0:
            raise BooksBroken(f"cells: {self._cells_free} free + {used} used are not {self.total_cells}")
        if sorted([*self._free, *self._held]) != list(range(self.total_slots)):
            raise BooksBroken(f"slots: {sorted(self._free)} free, {sorted(self._held)} used of {self.total_slots}")
        if running is not None and running != len(self._held):
            raise BooksBroken(f"{running} sequences run in {len(self._held)} held slots")

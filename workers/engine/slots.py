"""Sequence ids and KV cells: what is taken, what is kept, what is free, and the audit of all three."""

from shared.errors import PenstockError


class SlotAccountingError(PenstockError):
    """Slots or cells do not add up: the engine must not go on."""


class Slots:
    """The engine's two budgets. Only the engine's thread touches it.

    A job holds one slot and as many cells as its prompt and its longest answer may fill, from its
    first step to its end, so that no running job can ever lack a cell. A free slot may keep cells
    that a later job can begin with; they are free to whoever needs them, once they are let go.
    Always: free + kept + used == total for cells, and free + used == total for slots.
    """

    def __init__(self, slots: int, cells: int) -> None:
        if slots < 1 or cells < 1:
            raise ValueError(f"an engine needs a slot and a cell: slots={slots}, cells={cells}")
        self.total_slots, self.total_cells = slots, cells
        self._free = set(range(slots))
        self._cells_free = cells
        self._held: dict[int, int] = {}
        #: Cells that a free slot keeps.
        self._kept: dict[int, int] = {}

    @property
    def free_slots(self) -> list[int]:
        """Slots that nobody holds, the lowest number first."""
        return sorted(self._free)

    @property
    def held_slots(self) -> list[int]:
        """Slots that jobs hold."""
        return sorted(self._held)

    @property
    def free_cells(self) -> int:
        """Cells that nobody holds and no slot keeps."""
        return self._cells_free

    def fits(self, cells: int) -> bool:
        """Whether a job of so many cells can have a slot, if need be after `let_go` of all that is kept."""
        return bool(self._free) and cells <= self._cells_free + sum(self._kept.values())

    def lacks(self, cells: int, slot: int) -> bool:
        """Whether something has to be let go before `take(cells, slot)`."""
        return cells > self._cells_free + self._kept.get(slot, 0)

    def take(self, cells: int, slot: int) -> None:
        """Give a free slot and `cells` cells to a job. Raises SlotAccountingError when they are not free."""
        if slot not in self._free or self.lacks(cells, slot):
            raise SlotAccountingError(
                f"took slot {slot} and {cells} cells of {self._cells_free} free, slots {self._free} free"
            )
        self.let_go(slot)
        self._free.remove(slot)
        self._held[slot] = cells
        self._cells_free -= cells

    def give_back(self, slot: int, keep: int = 0) -> None:
        """Free a slot, which keeps `keep` of its cells. Raises SlotAccountingError when nobody holds it or so many."""
        if slot not in self._held or not 0 <= keep <= self._held[slot]:
            raise SlotAccountingError(f"slot {slot} was given back to keep {keep} cells, held are {self._held}")
        self._cells_free += self._held.pop(slot) - keep
        self._free.add(slot)
        if keep:
            self._kept[slot] = keep

    def let_go(self, slot: int) -> None:
        """Free what a slot keeps, if anything."""
        self._cells_free += self._kept.pop(slot, 0)

    def check_integrity(self, running: int | None = None) -> None:
        """Raise SlotAccountingError unless the sums are right; with `running`, also that so many slots are held."""
        used, kept = sum(self._held.values()), sum(self._kept.values())
        if self._cells_free + kept + used != self.total_cells or self._cells_free < 0:
            sums = f"{self._cells_free} free + {kept} kept + {used} used"
            raise SlotAccountingError(f"cells: {sums} are not {self.total_cells}")
        if sorted([*self._free, *self._held]) != list(range(self.total_slots)) or not self._free >= set(self._kept):
            raise SlotAccountingError(
                f"slots: {sorted(self._free)} free, {sorted(self._held)} used of {self.total_slots}"
            )
        if running is not None and running != len(self._held):
            raise SlotAccountingError(f"{running} sequences run in {len(self._held)} held slots")

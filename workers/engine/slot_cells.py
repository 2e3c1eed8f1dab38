"""Accounting of the engine's slots and KV cells: which are in use, kept for prefix reuse, or free."""

from shared.errors import PenstockError


class SlotAccountingError(PenstockError):
    """The counts of slots or cells contradict each other. The engine must stop."""


class Slots:
    """Tracks which slots and KV cells are in use, kept or free. Used by the engine's thread only.

    From its first step to its end, a job holds one slot, a cell for each prompt token, and a cell for each token that
    its answer may have, so a running job never runs out of cells. A free slot may keep the cells that its last job
    computed, so that a later job, or the same job after a pause, can reuse them. Kept cells can be evicted whenever
    another job needs cells. Of `sequences` slots, at most `slots` are in use at a time. Invariants:
    free + kept + used == total for cells, and free + used == total for slots.
    """

    def __init__(self, slots: int, cells: int, *, sequences: int = 0) -> None:
        sequences = sequences or slots
        if not 1 <= slots <= sequences or cells < 1:
            given = f"slots={slots}, sequences={sequences}, cells={cells}"
            raise ValueError(f"an engine needs at least 1 slot and 1 cell, and no fewer sequences than slots: {given}")
        self.total_slots, self.total_cells, self._most_held = sequences, cells, slots
        self._free = set(range(sequences))
        #: Number of cells that no job holds and no free slot keeps.
        self.free_cells = cells
        #: Slot in use → number of cells that its job holds.
        self._held: dict[int, int] = {}
        #: Free slot → number of cells that it keeps.
        self._kept: dict[int, int] = {}

    @property
    def free_slots(self) -> list[int]:
        return sorted(self._free)

    @property
    def held_slots(self) -> list[int]:
        return sorted(self._held)

    @property
    def unused(self) -> int:
        """Number of jobs that could start besides those that hold slots."""
        return self._most_held - len(self._held)

    def fits(self, cells: int) -> bool:
        """Return whether a job that needs `cells` cells can start now, or could start if kept cells were evicted."""
        return len(self._held) < self._most_held and cells <= self.free_cells + sum(self._kept.values())

    def needs_eviction(self, cells: int, slot: int) -> bool:
        """Return whether cells that other slots keep must be evicted before `take(cells, slot)` is called."""
        return cells > self.free_cells + self._kept.get(slot, 0)

    def take(self, cells: int, slot: int) -> None:
        """Assign a slot and `cells` cells to a job. Raises SlotAccountingError unless slot and cells are free."""
        if slot not in self._free or len(self._held) >= self._most_held or self.needs_eviction(cells, slot):
            raise SlotAccountingError(
                f"cannot take slot {slot} and {cells} cells: {self.free_cells} cells and slots {self._free} are free"
            )
        self.evict(slot)
        self._free.remove(slot)
        self._held[slot] = cells
        self.free_cells -= cells

    def give_back(self, slot: int, keep: int = 0) -> None:
        """Free a slot and its cells, except for `keep` cells, which the slot keeps for prefix reuse.

        Raises SlotAccountingError if no job holds the slot, or if the job holds fewer than `keep` cells.
        """
        if slot not in self._held or not 0 <= keep <= self._held[slot]:
            raise SlotAccountingError(f"cannot give back slot {slot} and keep {keep} cells: held are {self._held}")
        self.free_cells += self._held.pop(slot) - keep
        self._free.add(slot)
        if keep:
            self._kept[slot] = keep

    def evict(self, slot: int) -> None:
        """Free the cells that a free slot keeps. Does nothing if the slot keeps none."""
        self.free_cells += self._kept.pop(slot, 0)

    def check_integrity(self, running: int | None = None) -> None:
        """Check the invariants and, if `running` is not None, that jobs hold exactly `running` slots.

        Raises SlotAccountingError if a check fails.
        """
        used, kept = sum(self._held.values()), sum(self._kept.values())
        if self.free_cells + kept + used != self.total_cells or self.free_cells < 0:
            sums = f"{self.free_cells} free + {kept} kept + {used} used"
            raise SlotAccountingError(f"cells do not add up: {sums}, but the total is {self.total_cells}")
        if sorted([*self._free, *self._held]) != list(range(self.total_slots)) or not self._free >= set(self._kept):
            raise SlotAccountingError(
                f"slots do not add up: {sorted(self._free)} free, {sorted(self._held)} used, "
                f"{sorted(self._kept)} keep cells, but the total is {self.total_slots}"
            )
        if running is not None and running != len(self._held):
            raise SlotAccountingError(f"{running} sequences are running, but held slots are {len(self._held)}")

"""Which slot a job takes, and how much of its prompt is already computed there or in another one.

System prompts repeat, and a chat's next turn begins with the last one's whole. When a sequence ends, its
cells stay where they are until the slot or the cells are needed; a job begins with the longest
beginning that its own tenant has computed. What another tenant has computed is never looked at: not
to copy it, nor to choose a slot by it, so that no answer comes sooner because of another's prompt.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from workers.engine.slots import Slots

Tokens = np.ndarray[Any, np.dtype[np.int32]]

#: Shorter common beginnings (the beginning token, a template's first words) are not worth a copy.
FEWEST_TOKENS = 16


@dataclass(frozen=True)
class Known:
    """Tokens whose keys and values a slot holds, in order, and whose they are."""

    tenant: str
    tokens: Tokens


@dataclass(frozen=True)
class Place:
    """Where a job goes: its slot, and the `n` tokens of slot `source` that it begins with."""

    slot: int
    source: int
    n: int = 0


class PrefixCache:
    """What free slots keep. Only the engine's thread touches it; `slots` is changed through it alone.

    `forget` is told of each slot whose cells are let go. `compact`: a step is fastest when its slots are
    neighbours (a split cache), so a job goes beside those that run and copies what it begins with,
    rather than to where that lies.
    """

    def __init__(self, slots: Slots, forget: Callable[[int], None], *, compact: bool) -> None:
        self._slots, self._forget, self._compact = slots, forget, compact
        #: From the longest unused to the last used.
        self._kept: dict[int, Known] = {}

    @property
    def kept(self) -> dict[int, int]:
        """Free slots that still hold tokens, with their number."""
        return {slot: len(known.tokens) for slot, known in self._kept.items()}

    def take(self, tenant: str, prompt: Tokens | None, cells: int, running: Iterable[tuple[int, Known]]) -> Place:
        """Take a slot and `cells` cells, for which `Slots.fits` has said yes; what is in the way is let go.

        `running` are the slots in use with what they hold by now; without a `prompt` nothing is reused.
        """
        source, n = -1, 0
        if prompt is not None:
            source, n = self._longest(tenant, prompt, running)
        slot = self._slot_for(source, n)
        for oldest in self._in_the_way(cells, slot, source):
            if oldest == source and slot != source:
                # No room for the copy beside the original: the job goes to where it lies.
                self._let_go(slot)
                slot = source
                break
            self._let_go(oldest)
        if source in self._kept:
            self._kept[source] = self._kept.pop(source)
        self._kept.pop(slot, None)
        self._slots.take(cells, slot)
        return Place(slot, source if n else slot, n)

    def give_back(self, slot: int, known: Known | None) -> None:
        """The slot's sequence has ended, and `known` stays in its cells; nothing without it."""
        keep = 0 if known is None else len(known.tokens)
        self._slots.give_back(slot, keep)
        if known is not None and keep:
            self._kept[slot] = known
        else:
            self._forget(slot)

    def _longest(self, tenant: str, prompt: Tokens, running: Iterable[tuple[int, Known]]) -> tuple[int, int]:
        """The slot with the longest beginning of `prompt`, and its length; (-1, 0) when none is worth it.

        The last token of a prompt is always computed: an answer begins with its logits.
        """
        source, longest = -1, FEWEST_TOKENS - 1
        for slot, known in (*self._kept.items(), *running):
            if known.tenant == tenant:
                n = common(known.tokens, prompt[:-1])
                if n > longest:
                    source, longest = slot, n
        return (source, longest) if source >= 0 else (-1, 0)

    def _slot_for(self, source: int, n: int) -> int:
        free = self._slots.free_slots
        if self._compact:
            free = _beside(free, self._slots.held_slots)
        empty = [slot for slot in free if slot not in self._kept]
        # What is much longer than the common beginning is left to those who go on from its end.
        if source in free and (2 * n >= len(self._kept[source].tokens) or not empty):
            return source
        oldest = [slot for slot in self._kept if slot in free]
        return (empty or [slot for slot in oldest if slot != source] or oldest)[0]

    def _in_the_way(self, cells: int, slot: int, source: int) -> Iterator[int]:
        """Slots to let go until the cells are there: the longest kept first, what is wanted last."""
        others = [kept for kept in self._kept if kept not in (slot, source)]
        for kept in [*others, *(one for one in (source,) if one in self._kept)]:
            if not self._slots.lacks(cells, slot):
                return
            yield kept

    def _let_go(self, slot: int) -> None:
        if self._kept.pop(slot, None) is not None:
            self._slots.let_go(slot)
            self._forget(slot)


def common(one: Tokens, other: Tokens) -> int:
    """How many tokens two texts have in common from their beginning."""
    n = min(len(one), len(other))
    differ = one[:n] != other[:n]
    return int(differ.argmax()) if differ.any() else n


def _beside(free: list[int], held: list[int]) -> list[int]:
    """Those of the free slots that leave the fewest groups of neighbours."""
    joined = {slot: (slot - 1 in held) + (slot + 1 in held) for slot in free}
    most = max(joined.values())
    return [slot for slot in free if joined[slot] == most]

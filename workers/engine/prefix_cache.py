"""Prefix reuse: choose the slot for a job, and the computed tokens from which the job starts.

Many prompts begin with the same system prompt, and each turn of a chat begins with the whole previous turn. When a
sequence ends, its slot keeps the computed KV cells until the slot or the cells are needed for another job. A new job
starts from the longest prefix of its prompt that a job of the same tenant computed and that a slot still holds. The
prompt is never compared with tokens of another tenant's jobs, neither to copy them nor to choose a slot, so the time to
an answer reveals nothing about another tenant's prompts.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from workers.engine.slots import Slots

Tokens = np.ndarray[Any, np.dtype[np.int32]]

#: Length of the shortest prefix that is reused, in tokens. It is not worthwhile to copy a shorter prefix (the
#: begin-of-sequence token, the first words of a chat template).
MIN_REUSED_TOKENS = 16


@dataclass(frozen=True)
class CachedTokens:
    """The tokens whose keys and values are in a slot's KV cells, in order, and the tenant whose job computed them."""

    tenant: str
    tokens: Tokens


@dataclass(frozen=True)
class SlotAssignment:
    """The slot assigned to a new job. The job starts from the first `reused` tokens of slot `source`."""

    slot: int
    source: int
    reused: int = 0


class PrefixCache:
    """The tokens that free slots keep for reuse. Used by the engine's thread only.

    Nothing else may change `slots`. `clear_slot` is called with each slot whose cells must be emptied. `compact` means
    that a step is faster when its slots have consecutive numbers (a split KV cache). A new job then takes a slot next
    to the slots in use, and its prefix is copied to that slot, even if the slot that holds the prefix is free.
    """

    def __init__(self, slots: Slots, clear_slot: Callable[[int], None], *, compact: bool) -> None:
        self._slots, self._clear_slot, self._compact = slots, clear_slot, compact
        #: Free slot → the tokens that it keeps. The least recently used slot comes first.
        self._kept: dict[int, CachedTokens] = {}

    @property
    def kept(self) -> dict[int, int]:
        """Return how many tokens each free slot keeps. Slots that keep none are left out."""
        return {slot: len(cached.tokens) for slot, cached in self._kept.items()}

    def take(
        self, tenant: str, prompt: Tokens | None, cells: int, running: Iterable[tuple[int, CachedTokens]]
    ) -> SlotAssignment:
        """Take a slot and `cells` cells for a job of `tenant`, and evict kept cells if necessary.

        The caller must have checked with `Slots.fits` that the job fits. `running` contains the slots in which the
        tenant's jobs run, each with the tokens that it holds now. If `prompt` is None, no prefix is reused.
        """
        source, n = -1, 0
        if prompt is not None:
            source, n = self._longest_prefix(tenant, prompt, running)
        slot = self._choose_slot(source, n)
        for victim in self._eviction_order(cells, slot, source):
            if victim == source and slot != source:
                # There are not enough cells for both the prefix and its copy, so the job takes the source slot itself.
                self._evict(slot)
                slot = source
                break
            self._evict(victim)
        if source in self._kept:
            # Mark the source as the most recently used.
            self._kept[source] = self._kept.pop(source)
        self._kept.pop(slot, None)
        self._slots.take(cells, slot)
        return SlotAssignment(slot, source if n else slot, n)

    def give_back(self, slot: int, cached: CachedTokens | None) -> None:
        """Free the slot of an ended sequence. The slot keeps the `cached` tokens, or none if `cached` is None."""
        keep = 0 if cached is None else len(cached.tokens)
        self._slots.give_back(slot, keep)
        if cached is not None and keep:
            self._kept[slot] = cached
        else:
            self._clear_slot(slot)

    def _longest_prefix(
        self, tenant: str, prompt: Tokens, running: Iterable[tuple[int, CachedTokens]]
    ) -> tuple[int, int]:
        """Return the slot that holds the longest prefix of `prompt`, and the length of that prefix.

        Return (-1, 0) if no slot holds a prefix of at least MIN_REUSED_TOKENS tokens. The last token of the prompt is
        never part of the prefix: it must be computed, because the answer's first token is sampled from its logits.
        """
        source, longest = -1, MIN_REUSED_TOKENS - 1
        for slot, cached in (*self._kept.items(), *running):
            if cached.tenant == tenant:
                n = common_prefix_length(cached.tokens, prompt[:-1])
                if n > longest:
                    source, longest = slot, n
        return (source, longest) if source >= 0 else (-1, 0)

    def _choose_slot(self, source: int, n: int) -> int:
        free = self._slots.free_slots
        if self._compact:
            free = _most_adjacent(free, self._slots.held_slots)
        empty = [slot for slot in free if slot not in self._kept]
        # If the source slot keeps more than twice as many tokens as the prefix has, and another free slot keeps no
        # tokens, copy the prefix to that slot, so that all tokens of the source slot stay reusable.
        if source in free and (2 * n >= len(self._kept[source].tokens) or not empty):
            return source
        oldest = [slot for slot in self._kept if slot in free]
        return (empty or [slot for slot in oldest if slot != source] or oldest)[0]

    def _eviction_order(self, cells: int, slot: int, source: int) -> Iterator[int]:
        """Yield slots to evict until `slot` can take `cells` cells: least recently used first, `source` last."""
        others = [kept for kept in self._kept if kept not in (slot, source)]
        last = [source] if source in self._kept else []
        for kept in [*others, *last]:
            if not self._slots.needs_eviction(cells, slot):
                return
            yield kept

    def _evict(self, slot: int) -> None:
        if self._kept.pop(slot, None) is not None:
            self._slots.evict(slot)
            self._clear_slot(slot)


def common_prefix_length(one: Tokens, other: Tokens) -> int:
    """Return how many tokens at the beginning of the two arrays are the same."""
    n = min(len(one), len(other))
    differ = one[:n] != other[:n]
    return int(differ.argmax()) if differ.any() else n


def _most_adjacent(free: list[int], held: list[int]) -> list[int]:
    """Return the free slots with the most neighbours in use. Taking one keeps the slots in use close together."""
    neighbours = {slot: (slot - 1 in held) + (slot + 1 in held) for slot in free}
    most = max(neighbours.values())
    return [slot for slot in free if neighbours[slot] == most]

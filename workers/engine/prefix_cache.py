"""Prefix reuse: choose the slot for a job, and the computed tokens from which the job starts.

Many prompts begin with the same system prompt, and each turn of a chat begins with the whole previous turn. When a
sequence ends, its slot keeps the computed KV cells until the slot or the cells are needed for another job. A new job
starts from the longest prefix of its prompt that a job of the same tenant computed and that a slot still holds. The
prompt is never compared with tokens of another tenant's jobs, neither to copy them nor to choose a slot, so the time to
an answer reveals nothing about another tenant's prompts. Nor is it compared with tokens that another adapter computed,
whose keys and values differ.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from shared.jobs.job import ClaimRef
from workers.engine.slot_cells import Slots

Tokens = np.ndarray[Any, np.dtype[np.int32]]
#: A paused sequence whose cells are kept: the key of its job, and its number among the job's candidates.
Owner = tuple[ClaimRef, int]

#: Length of the shortest prefix that is reused, in tokens. It is not worthwhile to copy a shorter prefix (the
#: begin-of-sequence token, the first words of a chat template).
MIN_REUSED_TOKENS = 16


class Scope(NamedTuple):
    """A tenant, and the adapter that computed its tokens ("" for none). Jobs reuse the tokens of their scope only."""

    tenant: str
    adapter: str = ""


@dataclass(frozen=True)
class CachedTokens:
    """The tokens whose keys and values are in a slot's KV cells, in order, and the scope in which they are reused."""

    scope: Scope
    tokens: Tokens
    #: The paused sequence that continues after these tokens (`Sequence.owner`); None without one.
    owner: Owner | None = None


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
    `on_eviction` is called before the tokens of a paused job are lost, with their slot, their owner and their number.
    """

    def __init__(
        self,
        slots: Slots,
        clear_slot: Callable[[int], None],
        *,
        compact: bool,
        on_eviction: Callable[[int, Owner, int], None] = lambda _slot, _owner, _n: None,
    ) -> None:
        self._slots, self._clear_slot, self._compact, self._on_eviction = slots, clear_slot, compact, on_eviction
        #: Free slot → the tokens that it keeps. The least recently used slot comes first.
        self._kept: dict[int, CachedTokens] = {}

    @property
    def kept(self) -> dict[int, int]:
        """Return how many tokens each free slot keeps. Slots that keep none are left out."""
        return {slot: len(cached.tokens) for slot, cached in self._kept.items()}

    def take_back(self, owner: Owner, cells: int) -> SlotAssignment | None:
        """Take the slot that keeps the tokens of a paused job, and `cells` cells; None if they were evicted."""
        slot = self._kept_by(owner)
        if slot is None:
            return None
        for victim in self._eviction_order(cells, slot, slot):
            self._evict(victim)
        cached = self._kept.pop(slot)
        self._slots.take(cells, slot)
        return SlotAssignment(slot, slot, len(cached.tokens))

    def disown(self, owner: Owner) -> bool:
        """Treat the tokens of a paused job that has ended like those of any ended job. Return whether it had any."""
        slot = self._kept_by(owner)
        if slot is not None:
            self._kept[slot] = replace(self._kept[slot], owner=None)
        return slot is not None

    def fits_beside_paused(self, cells: int, owner: Owner) -> bool:
        """Return whether a slot and `cells` cells are free for `owner` that are not kept for other paused sequences."""
        others = {slot: len(kept.tokens) for slot, kept in self._kept.items() if kept.owner not in (None, owner)}
        return len(self._slots.free_slots) > len(others) and self._slots.fits(cells + sum(others.values()))

    def _kept_by(self, owner: Owner) -> int | None:
        return next((slot for slot, cached in self._kept.items() if cached.owner == owner), None)

    def take(
        self,
        scope: Scope,
        prompt: Tokens | None,
        cells: int,
        running: Iterable[tuple[int, CachedTokens]],
        beside: Collection[int] | None = None,
    ) -> SlotAssignment:
        """Take a slot and `cells` cells for a job of `scope`, and evict kept cells if necessary.

        The caller must have checked with `Slots.fits` that the job fits. `running` contains the slots in which
        jobs of the scope run, each with the tokens that it holds now. If `prompt` is None, no prefix is reused.
        `beside` are the slots in use that are in the same steps as the job; None for all of them.
        """
        source, n = -1, 0
        if prompt is not None:
            source, n = self._longest_prefix(scope, prompt, running)
        slot = self._choose_slot(source, n, self._slots.held_slots if beside is None else beside)
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
        self._forget(slot)
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

    def evict_surplus(self) -> None:
        """Let ended jobs keep tokens in no more slots than further jobs could use.

        All kept cells of a shared cache lengthen the attention of each step.
        """
        ended = [slot for slot in self._kept if not self._owned(slot)]
        for slot in ended[: max(0, len(ended) - self._slots.unused)]:
            self._evict(slot)

    def _longest_prefix(
        self, scope: Scope, prompt: Tokens, running: Iterable[tuple[int, CachedTokens]]
    ) -> tuple[int, int]:
        """Return the slot that holds the longest prefix of `prompt`, and the length of that prefix.

        Return (-1, 0) if no slot holds a prefix of at least MIN_REUSED_TOKENS tokens. The last token of the prompt is
        never part of the prefix: it must be computed, because the answer's first token is sampled from its logits.
        """
        source, longest = -1, MIN_REUSED_TOKENS - 1
        for slot, cached in (*self._kept.items(), *running):
            if cached.scope == scope:
                n = common_prefix_length(cached.tokens, prompt[:-1])
                if n > longest:
                    source, longest = slot, n
        return (source, longest) if source >= 0 else (-1, 0)

    def _choose_slot(self, source: int, n: int, beside: Collection[int]) -> int:
        free = self._slots.free_slots
        if self._compact:
            free = _most_adjacent(free, beside, set(self._slots.held_slots).difference(beside))
        empty = [slot for slot in free if slot not in self._kept]
        oldest = [slot for slot in self._by_worth() if slot in free]
        others = empty or [slot for slot in oldest if slot != source]
        if source in free and self._owned(source):
            # Copy the prefix, so that the paused job can resume, unless the copy would replace another paused job.
            takes_source = not others or self._owned(others[0])
        else:
            # If the source slot keeps more than twice as many tokens as the prefix has, and another free slot keeps no
            # tokens, copy the prefix to that slot, so that all tokens of the source slot stay reusable.
            takes_source = source in free and (not empty or 2 * n >= len(self._kept[source].tokens))
        return source if takes_source else (others or oldest)[0]

    def _owned(self, slot: int) -> bool:
        return slot in self._kept and self._kept[slot].owner is not None

    def _by_worth(self) -> list[int]:
        """Return the slots that keep tokens: the least recently used first, and those of paused jobs last."""
        return sorted(self._kept, key=self._owned)

    def _eviction_order(self, cells: int, slot: int, source: int) -> Iterator[int]:
        """Yield slots to evict until `slot` can take `cells` cells: the least useful first, `source` last."""
        others = [kept for kept in self._by_worth() if kept not in (slot, source)]
        last = [source] if source in self._kept else []
        for kept in [*others, *last]:
            if not self._slots.needs_eviction(cells, slot):
                return
            yield kept

    def _evict(self, slot: int) -> None:
        if self._forget(slot):
            self._slots.evict(slot)
            self._clear_slot(slot)

    def _forget(self, slot: int) -> bool:
        """Forget the tokens that a free slot keeps. Return whether it kept any."""
        cached = self._kept.pop(slot, None)
        if cached is not None and cached.owner is not None:
            self._on_eviction(slot, cached.owner, len(cached.tokens))
        return cached is not None


def common_prefix_length(one: Tokens, other: Tokens) -> int:
    """Return how many tokens at the beginning of the two arrays are the same."""
    n = min(len(one), len(other))
    differ = one[:n] != other[:n]
    return int(differ.argmax()) if differ.any() else n


def _most_adjacent(free: list[int], beside: Collection[int], others: Collection[int]) -> list[int]:
    """Return the free slots with the most neighbours in `beside` and, of these, those farthest from `others`.

    Taking one keeps the slots of a step close together, and leaves room beside those of other steps.
    """

    def worth(slot: int) -> tuple[int, int]:
        distance = min((abs(slot - other) for other in others), default=0)
        return (slot - 1 in beside) + (slot + 1 in beside), distance

    worths = {slot: worth(slot) for slot in free}
    most = max(worths.values())
    return [slot for slot in free if worths[slot] == most]

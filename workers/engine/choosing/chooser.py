"""Chooses the tokens of all rows of a step at once, each as if its row were alone."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from workers.engine.choosing.adjusted import Adjustments, undo
from workers.engine.choosing.draw import Doubles, Rules, chances_at, draw
from workers.engine.choosing.largest import MAX_K, MAX_ROW, Finder, Floats, Ids, largest_in
from workers.engine.sampling import Sampling, is_greedy

Tokens = np.ndarray[Any, np.dtype[np.int64]]


class NothingToChoose(ValueError):
    """A row has no number among its logits, so no token can be chosen."""


@dataclass(frozen=True)
class Choice:
    """How the tokens of one answer are chosen. `seed` has 64 bits."""

    sampling: Sampling
    adjustments: Adjustments
    seed: int

    @cached_property
    def k(self) -> int:
        """How many of the likeliest tokens the draw needs; 0 if it needs all."""
        return 1 if is_greedy(self.sampling) else self.sampling.top_k

    @cached_property
    def rules(self) -> tuple[float, float, float]:
        """The restrictions of the draw, in the order of the fields of `Rules`."""
        return self.sampling.top_p, float(_log(self.sampling.min_p)), self.sampling.temperature


class Row(NamedTuple):
    """One row of a step's logits, by its number, and what is chosen from it: the token at `position` of an answer."""

    number: int
    choice: Choice
    position: int


class Chooser:
    """Chooses tokens from rows of logits, which it changes and restores. Used by one thread."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    def choose(self, logits: Floats, rows: list[Row]) -> list[int | NothingToChoose]:
        """Return the token of each row, or an error for a row without a number."""
        most = MAX_K if logits.shape[1] <= MAX_ROW else 0
        together = [row for row in rows if 0 < row.choice.k <= most]
        if len(together) == len(rows):
            return self._from_largest(logits, rows)
        chosen = iter(self._from_largest(logits, together) if together else ())
        return [next(chosen) if 0 < row.choice.k <= most else self._from_all(logits, row) for row in rows]

    def choose_among(self, logits: Floats, row: Row, tokens: Tokens) -> int:
        """Return one of the tokens `tokens`, which are in ascending order.

        If all of them are impossible, the answer has to end, and the first of them is returned.
        """
        return int(tokens[self._place(logits, row, tokens) or 0])

    def largest(self, row: Floats, k: int) -> Ids:
        if k > MAX_K or len(row) > MAX_ROW:
            return largest_in(row, k).astype(np.int32)
        found = self._finder.find(np.array([row.ctypes.data], np.uint64), np.array([k], np.int32), len(row))
        return found.ids[0, : found.counts[0]]

    def _from_all(self, logits: Floats, row: Row) -> int | NothingToChoose:
        place = self._place(logits, row)
        return _nothing() if place is None else place

    @staticmethod
    def _place(logits: Floats, row: Row, tokens: Tokens | slice = np.s_[:]) -> int | None:
        own = logits[row.number]
        change = row.choice.adjustments.apply(own, row.position)
        try:
            return _place_in(own[tokens], row)
        finally:
            undo([change])

    def _from_largest(self, logits: Floats, rows: list[Row]) -> list[int | NothingToChoose]:
        n, changes = logits.shape[1], []
        ks = np.minimum(np.array([row.choice.k for row in rows], np.int32), np.int32(n))
        numbers = np.array([row.number for row in rows], np.uint64)
        try:
            for number, choice, position in rows:
                if not choice.adjustments.is_none:
                    changes.append(choice.adjustments.apply(logits[number], position))
            found = self._finder.find(np.uint64(logits.ctypes.data) + numbers * np.uint64(logits.strides[0]), ks, n)
        finally:
            undo(changes)
        counts = found.counts.tolist()
        drawn = [at for at, row in enumerate(rows) if row.choice.k > 1 and counts[at]]
        tokens = found.ids[:, 0].tolist()
        if drawn:
            places = draw(found.values[drawn], *_rules([rows[at] for at in drawn]))
            for at, token in zip(drawn, found.ids[drawn, places].tolist(), strict=True):
                tokens[at] = token
        return [token if count else _nothing() for token, count in zip(tokens, counts, strict=True)]

    def close(self) -> None:
        self._finder.close()


def _place_in(logits: Floats, row: Row) -> int | None:
    """Return the place of the chosen logit; None if there is no number among them.

    Every logit may have to be looked at. They are sorted only as far as min-p allows.
    """
    k, sampling = row.choice.k, row.choice.sampling
    if 0 < k <= MAX_K:
        places, total = largest_in(logits, min(k, len(logits))), None
    else:
        places, total = _likeliest(logits, k, sampling)
    if not len(places):
        return None
    if k == 1:
        return int(places[0])
    rules, chances = _rules([row])
    return int(places[draw(logits[places][None], rules, chances, total)[0]])


def _likeliest(logits: Floats, k: int, sampling: Sampling) -> tuple[Tokens, Doubles | None]:
    """Return the places of the logits that min-p allows among the `k` largest, or all; and the sum of all weights."""
    numbers = np.where(np.isnan(logits), np.float32(-np.inf), logits)
    largest = numbers.max()
    if largest == -np.inf:
        return np.empty(0, np.int64), None
    if 0 < k < len(numbers):
        bound = np.partition(numbers, len(numbers) - k)[len(numbers) - k]
        # Of those that are as large as the k-th one, the first ones count.
        among = np.flatnonzero(numbers >= bound)
        among = np.sort(among[np.argsort(-numbers[among], kind="stable")[:k]])
    else:
        among = np.arange(len(numbers))
    weighed = numbers[among]
    total = np.exp(
        (weighed if largest < np.inf else np.where(weighed == largest, 0.0, -np.inf)).astype(np.float64)
        - (largest if largest < np.inf else 0.0)
    ).sum(keepdims=True)
    allowed = among[(weighed >= largest + _log(sampling.min_p)) & (weighed > -np.inf)]
    return allowed[np.argsort(-numbers[allowed], kind="stable")], total


def _rules(rows: list[Row]) -> tuple[Rules, Doubles]:
    top_p, log_min_p, temperature = np.array([row.choice.rules for row in rows], np.float64).T
    seeds = np.array([row.choice.seed for row in rows], np.uint64)
    positions = np.array([row.position for row in rows], np.uint64)
    return Rules(top_p, log_min_p.astype(np.float32), temperature), chances_at(seeds, positions)


def _log(share: float) -> np.float32:
    return np.float32(math.log(share) if share > 0 else -math.inf)


def _nothing() -> NothingToChoose:
    return NothingToChoose("the model's logits have no number")

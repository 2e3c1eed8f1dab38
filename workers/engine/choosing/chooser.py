"""Chooses the tokens of all rows of a step at once, each as if its row were alone."""

import math
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from workers.engine.choosing.adjusted import Adjustments
from workers.engine.choosing.draw import Doubles, Rules, chances_at, draw
from workers.engine.choosing.largest import MAX_K, MAX_ROW, Finder, Floats, floats_at, largest_in
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


@dataclass(frozen=True)
class Row:
    """The logits at `address`, from which the token at `position` of an answer is chosen."""

    address: int
    choice: Choice
    position: int


class Chooser:
    """Chooses tokens of a vocabulary of `n_vocab` tokens. Used by one thread."""

    def __init__(self, n_vocab: int, finder: Finder) -> None:
        self._n_vocab, self._finder = n_vocab, finder

    def choose(self, rows: list[Row]) -> list[int | NothingToChoose]:
        """Return the token of each row, or an error for a row without a number."""
        chosen: dict[int, int | NothingToChoose] = {}
        for at, row in enumerate(rows):
            if not 0 < row.choice.k <= MAX_K or self._n_vocab > MAX_ROW:
                chosen[at] = self._from_all(row)
        together = [at for at in range(len(rows)) if at not in chosen]
        if together:
            chosen |= zip(together, self._from_largest([rows[at] for at in together]), strict=True)
        return [chosen[at] for at in range(len(rows))]

    def choose_among(self, row: Row, tokens: Tokens) -> int:
        """Return one of the tokens `tokens`, which are in ascending order.

        If all of them are impossible, the answer has to end, and the first of them is returned.
        """
        logits = floats_at(row.address, self._n_vocab)
        with row.choice.adjustments.applied(logits, row.position):
            place = _place_in(logits[tokens], row)
        return int(tokens[place or 0])

    def _from_all(self, row: Row) -> int | NothingToChoose:
        logits = floats_at(row.address, self._n_vocab)
        with row.choice.adjustments.applied(logits, row.position):
            place = _place_in(logits, row)
        return _nothing() if place is None else place

    def _from_largest(self, rows: list[Row]) -> list[int | NothingToChoose]:
        n, count = self._n_vocab, len(rows)
        addresses = np.fromiter((row.address for row in rows), np.uint64, count)
        ks = np.fromiter((min(row.choice.k, n) for row in rows), np.int32, count)
        with ExitStack() as changes:
            for row in rows:
                if row.choice.adjustments.any_at(row.position):
                    logits = floats_at(row.address, n)
                    changes.enter_context(row.choice.adjustments.applied(logits, row.position))
            found = self._finder.find(addresses, ks, n)
        places = np.zeros(count, np.int64)
        drawn = [at for at, row in enumerate(rows) if row.choice.k > 1 and found.counts[at]]
        if drawn:
            places[drawn] = draw(found.values[drawn], *_rules([rows[at] for at in drawn]))
        tokens = found.ids[np.arange(count), places].tolist()
        return [token if some else _nothing() for token, some in zip(tokens, found.counts.tolist(), strict=True)]

    def close(self) -> None:
        """End the threads."""
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
    samplings = [row.choice.sampling for row in rows]
    count = len(rows)
    rules = Rules(
        np.fromiter((sampling.top_p for sampling in samplings), np.float64, count),
        np.fromiter((_log(sampling.min_p) for sampling in samplings), np.float32, count),
        np.fromiter((sampling.temperature for sampling in samplings), np.float64, count),
    )
    seeds = np.fromiter((row.choice.seed for row in rows), np.uint64, count)
    return rules, chances_at(seeds, np.fromiter((row.position for row in rows), np.uint64, count))


def _log(share: float) -> np.float32:
    return np.float32(math.log(share) if share > 0 else -math.inf)


def _nothing() -> NothingToChoose:
    return NothingToChoose("the model's logits have no number")

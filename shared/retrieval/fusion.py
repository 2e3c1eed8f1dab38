"""Joins lists of passages: the two halves of a hybrid search by their scores, and several queries by their ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shared.retrieval.records import Half, Passage

#: How much the words of a passage count beside its vector: most queries match few of their words, and then the vectors
#: decide; a passage with all words of its query comes before one that only its vector finds.
_OF_WORDS = 3.0
#: The least range of similarities that counts as a whole one: where all vectors are about equally near, their order
#: says little.
_LEAST_RANGE = 0.1
#: The constant of reciprocal rank fusion: how much the first ranks count more than the next ones. 60 is the value of
#: its authors, and differences between 20 and 100 are small.
_SMOOTHING = 60


def fuse_halves(halves: Mapping[Half, Sequence[Passage]], k: int) -> tuple[Passage, ...]:
    """Return the `k` best passages of one or both halves, each best first.

    With one half, its scores stay. With both, a score is the mean of two numbers from 0 to 1, that of the words with
    three times the weight. For words it is their score. For vectors it says where the similarity lies between that of
    the last vector of the list and that of the first, because each model's similarities have a range of their own. A
    passage that a half did not find has 0 there.
    """
    if len(halves) == 1:
        return tuple(next(iter(halves.values()))[:k])
    sums = _Sums()
    for half, found in halves.items():
        weight = (_OF_WORDS if half == "words" else 1.0) / (1 + _OF_WORDS)
        for passage, score in zip(found, _comparable(half, found), strict=True):
            sums.add(passage, weight * score)
    return sums.best(k)


def fuse_queries(lists: Sequence[Sequence[Passage]], k: int) -> tuple[Passage, ...]:
    """Return the `k` best passages of the answers to several queries, each best first.

    With one list, its scores stay. With several, whose scores cannot be compared, a score is the sum of 1 / (60 + rank)
    over the lists, relative to the sum that a passage which is first in all lists has.
    """
    if len(lists) == 1:
        return tuple(lists[0][:k])
    sums, most = _Sums(), len(lists) / (_SMOOTHING + 1)
    for found in lists:
        for rank, passage in enumerate(found, 1):
            sums.add(passage, 1 / (_SMOOTHING + rank) / most)
    return sums.best(k)


class _Sums:
    """Passages with the sums of their scores."""

    def __init__(self) -> None:
        self._passages: dict[tuple[str, int], Passage] = {}
        self._scores: dict[tuple[str, int], float] = {}

    def add(self, passage: Passage, score: float) -> None:
        key = (passage.document_id, passage.ordinal)
        self._passages.setdefault(key, passage)
        self._scores[key] = self._scores.get(key, 0.0) + score

    def best(self, k: int) -> tuple[Passage, ...]:
        """Return the best passages with their sums as scores; of equal ones, the first added comes first."""
        best = sorted(self._passages, key=lambda key: -self._scores[key])[:k]
        return tuple(replace(self._passages[key], score=self._scores[key]) for key in best)


def _comparable(half: Half, found: Sequence[Passage]) -> list[float]:
    """Return the scores of a half's passages on a scale that all models and queries share."""
    if half == "words" or not found:
        return [passage.score for passage in found]
    first = found[0].score
    whole = max(_LEAST_RANGE, first - found[-1].score)
    return [1 - (first - passage.score) / whole for passage in found]

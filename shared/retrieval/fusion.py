"""Joins the two halves of a hybrid search into one list, by reciprocal rank fusion."""

from collections.abc import Sequence
from dataclasses import replace

from shared.retrieval.records import Passage

#: The constant of reciprocal rank fusion: how much the first ranks count more than the next ones. 60 is the value of
#: its authors, and differences between 20 and 100 are small.
_SMOOTHING = 60


def fuse(halves: Sequence[Sequence[Passage]], k: int) -> tuple[Passage, ...]:
    """Return the `k` best passages of several lists, each best first.

    With one list, its scores stay. With several, a score is the sum of 1 / (60 + rank) over the lists, relative to the
    sum that a passage which is first in all lists has.
    """
    if len(halves) == 1:
        return tuple(halves[0][:k])
    most = len(halves) / (_SMOOTHING + 1)
    passages: dict[tuple[str, int], Passage] = {}
    scores: dict[tuple[str, int], float] = {}
    for half in halves:
        for rank, passage in enumerate(half, 1):
            key = (passage.document_id, passage.ordinal)
            passages.setdefault(key, passage)
            scores[key] = scores.get(key, 0.0) + 1 / (_SMOOTHING + rank)
    # sorted() keeps the order of equal scores, so that the first list decides.
    best = sorted(passages, key=lambda key: -scores[key])[:k]
    return tuple(replace(passages[key], score=scores[key] / most) for key in best)

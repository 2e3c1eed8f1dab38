"""Chooses the adapter of a step. The adapters that have running sequences take turns.

llama.cpp sets adapters for a context, so all rows of a call are computed with the same one. The base model, without an
adapter, takes its turns like an adapter; its name is "".
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

#: How long a turn lasts while other adapters have running sequences, in seconds: at least, and at most. A stream waits
#: for a turn of each other adapter, which is .7 s with eight of them.
TURN_S, LONGEST_TURN_S = 0.1, 0.5
#: The part of its turns that a model may spend on changes of the adapter. In the first call after a change, llama.cpp
#: plans its buffers again: with the demo model that takes 4 ms, and 20 ms with one of 30 layers and 135M weights, on
#: one core of a Xeon. The turns of the second are therefore 200 ms long.
_CHANGING_PART = 0.1


@dataclass(frozen=True)
class Turn:
    """The adapter whose sequences run, and until when they do if others wait, in seconds of the engine's clock."""

    adapter: str
    until_s: float


def turn_length_s(change_s: float) -> float:
    """Return how long a turn lasts if a change of the adapter takes `change_s`."""
    return min(max(TURN_S, change_s / _CHANGING_PART), LONGEST_TURN_S)


def next_turn(
    order: Sequence[str], running: Collection[str], turn: Turn | None, now_s: float, length_s: float = TURN_S
) -> Turn:
    """Return the turn of the step that begins now. `running` has the adapters of the running sequences, at least one.

    The next turn goes to the first of these that follows in `order`, which has all adapters, and starts again after its
    end. So an adapter waits for at most one turn of each other one, and one without sequences takes no time.
    """
    if turn is not None and turn.adapter in running and (now_s < turn.until_s or len(running) == 1):
        return turn
    first = 0 if turn is None else order.index(turn.adapter) + 1
    following = [*order[first:], *order[:first]]
    return Turn(next(name for name in following if name in running), now_s + length_s)

"""Shares the memory of GPUs among workers with different models, which would otherwise each take what is free."""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.plan.memory import DoesNotFit, gib


@dataclass(frozen=True)
class Need:
    """The memory of one worker on a GPU, in bytes: at least `least_bytes`, and at most `most_bytes`."""

    name: str
    least_bytes: int
    most_bytes: int


@dataclass(frozen=True)
class Gpu:
    """A GPU by its number, as PENSTOCK_DEVICE names it, and its free memory in bytes."""

    number: int
    free_bytes: int


@dataclass(frozen=True)
class Share:
    """The GPU of one worker, and how much of its memory the worker may take, in bytes."""

    gpu: int
    share_bytes: int


def shares(needs: Sequence[Need], gpus: Sequence[Gpu]) -> list[Share]:
    """Return the share of each worker, in the order of `needs`.

    The worker with the largest need is placed first, each on the GPU that then has the most memory left. The rest of a
    GPU is divided equally among its workers; the part that one of them cannot use goes to the others.
    Raises DoesNotFit, whose message lists the needs, if a worker has no place.
    """
    left = {gpu.number: gpu.free_bytes for gpu in gpus}
    placed: dict[int, list[int]] = {gpu.number: [] for gpu in gpus}
    for index in sorted(range(len(needs)), key=lambda index: -needs[index].least_bytes):
        number = max(left, key=lambda number: left[number])
        left[number] -= needs[index].least_bytes
        placed[number].append(index)
        if left[number] < 0:
            raise DoesNotFit(_what_is_needed(needs, gpus))
    found: dict[int, Share] = {}
    for number, indexes in placed.items():
        wishes = [max(0, needs[index].most_bytes - needs[index].least_bytes) for index in indexes]
        for index, extra_bytes in zip(indexes, _divided(left[number], wishes), strict=True):
            found[index] = Share(number, needs[index].least_bytes + extra_bytes)
    return [found[index] for index in range(len(needs))]


def _divided(amount: int, wishes: Sequence[int]) -> list[int]:
    """Divide an amount equally among wishes. No wish gets more than its own amount."""
    given = [0] * len(wishes)
    # The smallest wish is served first, with an equal part of the rest, so that all others share what it leaves.
    for position, index in enumerate(sorted(range(len(wishes)), key=lambda index: wishes[index])):
        given[index] = min(wishes[index], amount // (len(wishes) - position))
        amount -= given[index]
    return given


def _what_is_needed(needs: Sequence[Need], gpus: Sequence[Gpu]) -> str:
    each = ", ".join(f"{need.name} {gib(need.least_bytes)}" for need in needs)
    there = ", ".join(f"{gib(gpu.free_bytes)} on GPU {gpu.number}" for gpu in gpus)
    return f"the models do not fit together: they need {each}, and free are {there}"

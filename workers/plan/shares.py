"""Shares the memory of GPUs among workers with different models, which would otherwise each take what is free."""

from collections.abc import Callable, Iterable, Sequence
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

    The worker with the largest need is placed first, each on the GPU that then has the most memory left. If they do not
    fit so, each is placed where it leaves the least. The rest of a GPU is divided equally among its workers; the part
    that one of them cannot use goes to the others.
    Raises DoesNotFit, whose message lists the needs, if a worker has no place.
    """
    placed = _placed(needs, gpus, max) or _placed(needs, gpus, min)
    if placed is None:
        raise DoesNotFit(_what_is_needed(needs, gpus))
    left = {gpu.number: gpu.free_bytes - sum(needs[index].least_bytes for index in placed[gpu.number]) for gpu in gpus}
    found: dict[int, Share] = {}
    for number, indexes in placed.items():
        wishes = [max(0, needs[index].most_bytes - needs[index].least_bytes) for index in indexes]
        for index, extra_bytes in zip(indexes, _divided(left[number], wishes), strict=True):
            found[index] = Share(number, needs[index].least_bytes + extra_bytes)
    return [found[index] for index in range(len(needs))]


def _placed(
    needs: Sequence[Need], gpus: Sequence[Gpu], choose: Callable[[Iterable[tuple[int, int]]], tuple[int, int]]
) -> dict[int, list[int]] | None:
    """Return the workers of each GPU by their indexes, the largest need first, None if one has no place.

    Of the pairs of the memory left on a GPU and its number, negated, `choose` returns one.
    """
    left = {gpu.number: gpu.free_bytes for gpu in gpus}
    placed: dict[int, list[int]] = {gpu.number: [] for gpu in gpus}
    for index in sorted(range(len(needs)), key=lambda index: -needs[index].least_bytes):
        least_bytes = needs[index].least_bytes
        fitting = [(free_bytes, -number) for number, free_bytes in left.items() if free_bytes >= least_bytes]
        if not fitting:
            return None
        number = -choose(fitting)[1]
        left[number] -= least_bytes
        placed[number].append(index)
    return placed


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

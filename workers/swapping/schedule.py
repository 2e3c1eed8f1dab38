"""Decides which model a worker that holds one at a time loads next, and predicts when each one is loaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

#: The weight of a model if all tenants that wait for it are missing in the snapshot.
_LEAST_WEIGHT = 0.001
#: A model that only batch jobs wait for counts as this part of one that others wait for: in age and in weight.
_BATCH_PART = 0.1


@dataclass(frozen=True)
class Demand:
    """The demand for one of the models, from the store, and its cost, from earlier loads."""

    model: str
    #: The queued and the running jobs.
    waiting: int
    running: int
    #: Age of the oldest queued job, in seconds. Batch jobs do not count, in `work_s` neither.
    oldest_s: float
    #: How long the queued work takes once the model is loaded, in seconds.
    work_s: float
    #: The sum of the weights of the tenants that wait for it.
    weight: float
    #: How long loading takes, in seconds.
    load_s: float
    #: Whether only batch jobs wait for it.
    is_batch: bool = False

    def urgency(self, waited_s: float) -> float:
        """Return the queued work over the time to load the model, which has had queued jobs for `waited_s`.

        That age counts as work, or that of the oldest job, so that a small queue ages.
        """
        part = _BATCH_PART if self.is_batch else 1.0
        return part * (self.work_s + max(self.oldest_s, waited_s)) / max(self.load_s, 1e-3)


class Schedule:
    """Shares the worker's time among models. All times are in seconds of one monotonic clock.

    Loading takes at most `load_share` of the time: a load is paid for with time that has passed since earlier ones.
    In a cycle, each model that has queued jobs is loaded once. The rest of the cycle is divided among these models by
    the weights of the tenants that wait for them. A model that only batch jobs wait for has a tenth of its weight, and
    gives way to others as soon as their load is paid for.
    """

    def __init__(self, load_share: float, now_s: float) -> None:
        self._load_share = load_share
        #: Time that may be spent on loading, and when it was computed.
        self._credit_s, self._counted_s = 0.0, now_s
        self._serving_since_s = now_s
        self._longest_load_s = 0.0
        #: By model that is not held, since when jobs wait for it. Batch jobs have no other age here.
        self._waiting_since_s: dict[str, float] = {}

    def loaded(self, load_s: float, now_s: float, *, is_first: bool = False) -> None:
        """Record that a model was loaded, which took `load_s`. The first load of a worker costs no credit."""
        self._count(now_s, ())
        self._credit_s -= 0.0 if is_first else load_s
        self._serving_since_s = now_s

    def next_model(self, held: str | None, demands: Sequence[Demand], now_s: float) -> str | None:
        """Return the model to load now in place of the one that is held, or None. Running jobs end before."""
        self._count(now_s, demands)
        self._note_waiting(held, demands, now_s)
        waiting = self._in_order(held, demands)
        if not waiting:
            return None
        if held is None:
            return waiting[0].model
        if self._wait_s(held, demands, waiting[0], now_s) > 0:
            return None
        return waiting[0].model

    def ready_in_s(self, held: str | None, demands: Sequence[Demand], now_s: float) -> dict[str, float]:
        """Return for each model that is not held in how many seconds a worker is expected to claim its jobs.

        A model without queued jobs comes after the others.
        """
        self._count(now_s, demands)
        order = self._in_order(held, demands)
        idle = [each for each in demands if each.model != held and not each.waiting]
        slices = self._slices([*order, *(each for each in demands if each.model == held)])
        found, passed_s = dict[str, float](), 0.0
        for each in order:
            if held is not None and not found:
                passed_s = max(0.0, self._wait_s(held, demands, each, now_s))
            passed_s += each.load_s
            found[each.model] = passed_s
            passed_s += slices[each.model]
        for each in idle:
            wait_s = passed_s if order or held is None else max(0.0, self._wait_s(held, demands, each, now_s))
            found[each.model] = wait_s + each.load_s
        return found

    def part_of(self, model: str, demands: Sequence[Demand]) -> float:
        """Return the part of the worker's time that a model has while jobs wait for it, beside the others in use.

        The rest is theirs, or goes by with loading.
        """
        cycle = [each for each in demands if each.waiting or each.running or each.model == model]
        if len(cycle) == 1:
            return 1.0
        own = [replace(each, weight=each.weight or 1.0) for each in cycle]
        slices = self._slices(own)
        return slices[model] / (sum(slices.values()) + sum(each.load_s for each in cycle))

    def _count(self, now_s: float, demands: Sequence[Demand]) -> None:
        """Add the credit of the time that has passed. No more is kept than two loads of the slowest model cost."""
        self._longest_load_s = max(self._longest_load_s, *(each.load_s for each in demands), 0.0)
        earned_s = self._load_share * (now_s - self._counted_s)
        self._credit_s = min(self._credit_s + earned_s, 2 * self._longest_load_s)
        self._counted_s = now_s

    def _note_waiting(self, held: str | None, demands: Sequence[Demand], now_s: float) -> None:
        names = [each.model for each in demands if each.waiting and each.model != held]
        self._waiting_since_s = {name: self._waiting_since_s.get(name, now_s) for name in names}

    def _in_order(self, held: str | None, demands: Sequence[Demand]) -> list[Demand]:
        found = [each for each in demands if each.waiting and each.model != held]
        now_s, since_s = self._counted_s, self._waiting_since_s
        return sorted(found, key=lambda each: (-each.urgency(now_s - since_s.get(each.model, now_s)), each.model))

    def _wait_s(self, held: str, demands: Sequence[Demand], following: Demand, now_s: float) -> float:
        """Return in how many seconds the held model gives way to the following one, if its own jobs do not end."""
        unpaid_s = (following.load_s - self._credit_s) / self._load_share
        own = next((each for each in demands if each.model == held), None)
        if own is None or not own.waiting or (own.is_batch and not following.is_batch):
            return unpaid_s
        cycle = [own, *self._in_order(held, demands)]
        if following not in cycle:
            cycle.append(following)
        slice_s = self._slices(cycle)[held]
        return max(unpaid_s, self._serving_since_s + slice_s - now_s)

    def _slices(self, cycle: Sequence[Demand]) -> Mapping[str, float]:
        """Return how long each model of a cycle is served."""
        parts = {each.model: _BATCH_PART if each.is_batch else 1.0 for each in cycle}
        weights = {each.model: max(parts[each.model] * each.weight, _LEAST_WEIGHT) for each in cycle}
        served_s = sum(each.load_s for each in cycle) * (1 / self._load_share - 1)
        return {model: served_s * weight / sum(weights.values()) for model, weight in weights.items()}

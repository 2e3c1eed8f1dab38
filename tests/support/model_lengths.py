"""Answer lengths of a tenant or a pool in the reference model, estimated from whole answers and from cut ones."""

import math
from collections import Counter
from dataclasses import dataclass, field

HALVED_AT = 128
#: Figures are used from this many answers on, and no answer stands for more than this part of all.
MIN_ANSWERS = 8
USUAL = 128
_SHARES = {"p10": 0.1, "p20": 0.2, "p35": 0.35, "p50": 0.5, "p90": 0.9}
_TOLERANCE = 1e-9


def rounded(number: float) -> float:
    """Return the number as the store rounds it."""
    return float(f"{number:.0f}")


def bucket_of(tokens: int) -> int:
    """Return the bucket of a length, in quarters of a doubling; 0 for an empty answer."""
    return 0 if tokens < 1 else math.floor(4 * math.log(tokens) / math.log(2) + 0.5) + 1


def middle_of(bucket: int) -> float:
    """Return the tokens at the middle of a bucket."""
    return 0 if bucket == 0 else 2 ** ((bucket - 1) / 4)


@dataclass
class Lengths:
    """How many answers ended in each bucket, whole or cut, and what follows from that."""

    whole: Counter[int] = field(default_factory=Counter)
    cut: Counter[int] = field(default_factory=Counter)
    total: float = 0.0
    #: The percentiles, by name.
    figures: dict[str, float] = field(default_factory=dict)
    known_mean: float = 0.0
    #: The unknown part of the answers, in thousandths; their least length, and their guessed length.
    tail: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def n(self) -> int:
        return self.whole.total() + self.cut.total()

    def learn(self, tokens: int, *, is_cut: bool, pool: "Lengths | None" = None) -> None:
        """Add an answer. `pool` has the lengths of the pool of a tenant's answer."""
        bucket = bucket_of(tokens)
        if is_cut and not any(n for other, n in self.whole.items() if other <= bucket):
            longer = sum(n for each in (self.whole, self.cut) for other, n in each.items() if other > bucket)
            if longer >= MIN_ANSWERS:
                return
        (self.cut if is_cut else self.whole)[bucket] += 1
        before, total = self.n, self.total + tokens
        middles = sum((self.whole[b] + self.cut[b]) * middle_of(b) for b in sorted({*self.whole, *self.cut}))
        scale = total / middles if middles else 1.0
        if before >= HALVED_AT:
            self.whole, self.cut = (Counter({b: n // 2 for b, n in each.items()}) for each in (self.whole, self.cut))
        self.total = rounded(total * self.n / before)
        self._estimate(scale, pool if pool is not None and pool.n >= MIN_ANSWERS else None)

    def _estimate(self, scale: float, pool: "Lengths | None") -> None:
        """Let the answers that were not cut stand for those that were cut before them."""
        left, at_risk, known, mean = 1.0, self.n, 0.0, 0.0
        self.figures = {}
        for bucket in sorted(b for b in {*self.whole, *self.cut} if self.whole[b] + self.cut[b]):
            if left * MIN_ANSWERS > at_risk + _TOLERANCE:
                break
            part, known = left * self.whole[bucket] / at_risk, middle_of(bucket)
            left, at_risk, mean = left - part, at_risk - self.whole[bucket] - self.cut[bucket], mean + part * known
            passed = {name for name, share in _SHARES.items() if 1 - left >= share - _TOLERANCE}
            self.figures |= dict.fromkeys(passed - self.figures.keys(), known)
        left = left if left > _TOLERANCE else 0.0
        self.known_mean = rounded(scale * (mean + left * known))
        for name in _SHARES.keys() - self.figures.keys():
            usual = max(1, pool.quantile(name)) if pool is not None else USUAL
            self.figures[name] = known if name in {"p10", "p20"} else max(2 * known, usual)
        usual = max(1, pool.mean(math.inf)) if pool is not None else USUAL
        least = scale * known
        self.tail = (
            (rounded(1_000 * left), rounded(least), rounded(max(2 * least, usual)))
            if left and self.n >= MIN_ANSWERS
            else (0.0, 0.0, 0.0)
        )

    def mean(self, max_tokens: float) -> float:
        """Return the mean length of answers that are cut at `max_tokens`, roughly."""
        share, least, guess = self.tail
        return self.known_mean + share / 1_000 * max(0, min(max_tokens, guess) - least)

    def quantile(self, name: str) -> float:
        """Return the percentile with this name, such as p50."""
        return rounded(self.figures.get(name, 0.0))

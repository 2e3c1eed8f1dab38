"""Lengths of prompts and answers, and arrival times, synthesized from the published figures of real traces.

No trace is replayed. For each trace a few percentiles (or a fit) are published, and samples are drawn from a
distribution that has these percentiles. Between two percentiles, lengths are log-uniform.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Percentiles:
    """A distribution by (share, value) knots, the first at 0 and the last at 1."""

    knots: tuple[tuple[float, float], ...]

    def sample(self, rng: np.random.Generator, count: int) -> Floats:
        """Draw `count` values."""
        shares = [share for share, _ in self.knots]
        logs = [math.log(value) for _, value in self.knots]
        return np.exp(np.interp(rng.random(count), shares, logs))


@dataclass(frozen=True)
class Lognormal:
    """A lognormal distribution by the mean and deviation of its logarithm."""

    mu: float
    sigma: float

    def sample(self, rng: np.random.Generator, count: int) -> Floats:
        """Draw `count` values."""
        return rng.lognormal(self.mu, self.sigma, count)


@dataclass(frozen=True)
class Shape:
    """The lengths and arrival times of one kind of traffic."""

    name: str
    prompt: Percentiles | Lognormal
    answer: Percentiles | Lognormal
    #: Coefficient of variation of the gaps between arrivals.
    gap_cv: float
    #: (window in s, variance over mean of the arrivals in such windows): burstiness beyond that of the gaps, if any.
    dispersion: tuple[tuple[float, float], ...] = ()

    def lengths(self, rng: np.random.Generator, count: int, *, longest: tuple[int, int]) -> tuple[list[int], list[int]]:
        """Draw the prompt and answer tokens of `count` jobs, each at least 1 and at most `longest`."""
        sampled = (self.prompt.sample(rng, count), self.answer.sample(rng, count))
        prompt, answer = (
            np.clip(np.rint(values), 1, most).astype(int).tolist()
            for values, most in zip(sampled, longest, strict=True)
        )
        return prompt, answer


#: Azure 2023, conversation: prompt p50/90/99 1020/2735/4142, answer 129/424/601, CV of the gaps 1.09. The lowest values
#: are not published; with the values chosen here, the mean prompt is 1.2k tokens and the mean answer 180.
CONVERSATION = Shape(
    "azure-2023-conversation",
    Percentiles(((0, 64), (0.5, 1020), (0.9, 2735), (0.99, 4142), (1, 4500))),
    Percentiles(((0, 16), (0.5, 129), (0.9, 424), (0.99, 601), (1, 700))),
    gap_cv=1.09,
)
#: Azure 2024, conversation: prompt 928/3830/6683, answer lognormal(3.660, 1.491); variance over mean of the arrivals in
#: windows of 1, 10 and 60 s: 1.6, 5.5, 17.
CONVERSATION_2024 = Shape(
    "azure-2024-conversation",
    Percentiles(((0, 64), (0.5, 928), (0.9, 3830), (0.99, 6683), (1, 7000))),
    Lognormal(3.660, 1.491),
    gap_cv=1.0,
    dispersion=((1.0, 1.6), (10.0, 5.5), (60.0, 17.0)),
)
#: Azure 2023, code: prompt 1469/5188/7436, answer 13/55/252. The CV of the gaps is 13 in the trace, which would put a
#: few minutes' traffic into one second. The bursts are therefore those of Azure 2024 code (1.9, 7.0, 20).
CODE = Shape(
    "azure-code",
    Percentiles(((0, 64), (0.5, 1469), (0.9, 5188), (0.99, 7436), (1, 7500))),
    Percentiles(((0, 4), (0.5, 13), (0.9, 55), (0.99, 252), (1, 400))),
    gap_cv=1.0,
    dispersion=((1.0, 1.9), (10.0, 7.0), (60.0, 20.0)),
)
#: BurstGPT: Gamma-distributed gaps with shape 0.5, which is a CV of 1.41; lengths as in CONVERSATION.
BURSTGPT = Shape("burstgpt-gaps", CONVERSATION.prompt, CONVERSATION.answer, gap_cv=math.sqrt(2))

#: Correlation times, in s, of the two components that model the burstiness beyond that of the gaps.
_TAUS_S = (2.0, 60.0)
#: Length of the intervals in which the rate is constant, in s.
_PIECE_S = 0.25


def gamma_times(rng: np.random.Generator, rate_per_s: float, seconds: float, cv: float) -> Floats:
    """Draw the arrival times, in s, of a renewal process with Gamma gaps: ascending, within [0, seconds)."""
    if rate_per_s <= 0:
        return np.empty(0)
    shape = 1 / cv**2
    count = int(rate_per_s * seconds * 1.2 + 20 * (1 + cv) * math.sqrt(rate_per_s * seconds) + 50)
    times = np.cumsum(rng.gamma(shape, 1 / (shape * rate_per_s), count))
    return times[times < seconds]


def burst_times(rng: np.random.Generator, rate_per_s: float, seconds: float, shape: Shape) -> Floats:
    """Draw arrival times, in s, with the shape's gaps, warped in time so that counts have the shape's dispersion.

    The dispersion was published for the trace's own rate. It is used unchanged at every simulated rate, so that bursts
    look the same at every load.
    """
    even = gamma_times(rng, rate_per_s, seconds, shape.gap_cv)
    if not shape.dispersion or not len(even):
        return even
    pieces = int(seconds / _PIECE_S) + 1
    rate = _varying_rate(rng, rate_per_s, pieces, shape.dispersion)
    # Time change: the even process is mapped through the inverse of the integral of the varying rate.
    passed = np.concatenate(([0.0], np.cumsum(rate) * _PIECE_S)) / rate_per_s
    wall = np.arange(pieces + 1) * _PIECE_S
    times: Floats = np.interp(even, passed, wall, right=np.inf)
    return times[times < seconds]


def _varying_rate(
    rng: np.random.Generator, rate_per_s: float, pieces: int, dispersion: tuple[tuple[float, float], ...]
) -> Floats:
    """Draw a lognormal rate with mean `rate_per_s`, whose two components produce the given dispersion."""
    log_rate = np.zeros(pieces)
    for tau_s, variance in zip(_TAUS_S, _component_variances(rate_per_s, dispersion), strict=True):
        # Convert the relative variance of the rate to the standard deviation of its logarithm.
        sigma = math.sqrt(math.log1p(variance))
        keep = math.exp(-_PIECE_S / tau_s)
        noise = rng.normal(0.0, sigma * math.sqrt(1 - keep**2), pieces)
        level = rng.normal(0.0, sigma)
        for i in range(pieces):
            level = keep * level + noise[i]
            log_rate[i] += level - sigma**2 / 2
    return rate_per_s * np.exp(log_rate)


def _component_variances(rate_per_s: float, dispersion: tuple[tuple[float, float], ...]) -> tuple[float, float]:
    """Return the non-negative relative variances of the two components: a least-squares fit to the dispersion.

    A rate with exponential correlation time τ and relative variance v adds this to the variance over mean of the counts
    in windows of length T: 2·rate·v·τ·(1 - τ/T·(1 - e^(-T/τ))).
    """
    rows, wanted = [], []
    for window_s, ratio in dispersion:
        scale = 1 / (ratio - 1)
        rows.append([scale * 2 * rate_per_s * t * (1 - t / window_s * (1 - math.exp(-window_s / t))) for t in _TAUS_S])
        wanted.append(1.0)
    solution = np.linalg.lstsq(np.array(rows), np.array(wanted), rcond=None)[0]
    fast, slow = (max(0.0, float(value)) for value in solution)
    return fast, slow

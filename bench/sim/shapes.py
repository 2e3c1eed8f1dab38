"""How long prompts and answers are, and how sends fall in time: the published traces' figures, synthesized.

Nothing is replayed: what is known of a trace are a few percentiles (or a fit), and samples are drawn from
a distribution that has them. Between two percentiles a length is log-uniform.
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
        """`count` values."""
        shares = [share for share, _ in self.knots]
        logs = [math.log(value) for _, value in self.knots]
        return np.exp(np.interp(rng.random(count), shares, logs))


@dataclass(frozen=True)
class Lognormal:
    """A lognormal distribution by the mean and deviation of its logarithm."""

    mu: float
    sigma: float

    def sample(self, rng: np.random.Generator, count: int) -> Floats:
        """`count` values."""
        return rng.lognormal(self.mu, self.sigma, count)


@dataclass(frozen=True)
class Shape:
    """What a kind of traffic looks like."""

    name: str
    prompt: Percentiles | Lognormal
    answer: Percentiles | Lognormal
    #: Coefficient of variation of the gaps between sends.
    gap_cv: float
    #: Variance over mean of the counts in windows of (s): how bursty it is beyond its gaps. Empty: no more.
    dispersion: tuple[tuple[float, float], ...] = ()

    def lengths(self, rng: np.random.Generator, count: int, *, longest: tuple[int, int]) -> tuple[list[int], list[int]]:
        """Prompt and answer tokens of `count` jobs, each at least 1 and at most `longest`."""
        sampled = (self.prompt.sample(rng, count), self.answer.sample(rng, count))
        prompt, answer = (
            np.clip(np.rint(values), 1, most).astype(int).tolist()
            for values, most in zip(sampled, longest, strict=True)
        )
        return prompt, answer


#: Azure 2023, conversation: prompt p50/90/99 1020/2735/4142, answer 129/424/601, gaps' CV 1.09. The lowest
#: values are not published; with these the prompts' mean is 1.2k and the answers' 180.
CONVERSATION = Shape(
    "azure-2023-conversation",
    Percentiles(((0, 64), (0.5, 1020), (0.9, 2735), (0.99, 4142), (1, 4500))),
    Percentiles(((0, 16), (0.5, 129), (0.9, 424), (0.99, 601), (1, 700))),
    gap_cv=1.09,
)
#: Azure 2024, conversation: prompt 928/3830/6683, answer lognormal(3.660, 1.491); variance over mean of the
#: counts at 1, 10 and 60 s: 1.6, 5.5, 17.
CONVERSATION_2024 = Shape(
    "azure-2024-conversation",
    Percentiles(((0, 64), (0.5, 928), (0.9, 3830), (0.99, 6683), (1, 7000))),
    Lognormal(3.660, 1.491),
    gap_cv=1.0,
    dispersion=((1.0, 1.6), (10.0, 5.5), (60.0, 17.0)),
)
#: Azure 2023, code: prompt 1469/5188/7436, answer 13/55/252, gaps' CV 13 in the trace; here the bursts are
#: those of Azure 2024 code (1.9, 7.0, 20), since a CV of 13 is a few minutes' traffic in one second.
CODE = Shape(
    "azure-code",
    Percentiles(((0, 64), (0.5, 1469), (0.9, 5188), (0.99, 7436), (1, 7500))),
    Percentiles(((0, 4), (0.5, 13), (0.9, 55), (0.99, 252), (1, 400))),
    gap_cv=1.0,
    dispersion=((1.0, 1.9), (10.0, 7.0), (60.0, 20.0)),
)
#: BurstGPT: gaps Gamma with shape 0.5, that is CV 1.41; lengths as in CONVERSATION.
BURSTGPT = Shape("burstgpt-gaps", CONVERSATION.prompt, CONVERSATION.answer, gap_cv=math.sqrt(2))

#: Correlation times (s) of the two components that carry what the gaps do not.
_TAUS_S = (2.0, 60.0)
#: Length of the pieces in which the rate is constant, in s.
_PIECE_S = 0.25


def gamma_times(rng: np.random.Generator, rate_per_s: float, seconds: float, cv: float) -> Floats:
    """Send times in s of a renewal process with Gamma gaps; ascending, within [0, seconds)."""
    if rate_per_s <= 0:
        return np.empty(0)
    shape = 1 / cv**2
    most = int(rate_per_s * seconds * 1.2 + 20 * (1 + cv) * math.sqrt(rate_per_s * seconds) + 50)
    times = np.cumsum(rng.gamma(shape, 1 / (shape * rate_per_s), most))
    return times[times < seconds]


def burst_times(rng: np.random.Generator, rate_per_s: float, seconds: float, shape: Shape) -> Floats:
    """Send times in s with the shape's gaps, stretched so that the counts vary as its dispersion says.

    The counts' variance over mean is the trace's at the trace's own rate; it is kept as it is at ours, so
    that bursts look the same at every load.
    """
    even = gamma_times(rng, rate_per_s, seconds, shape.gap_cv)
    if not shape.dispersion or not len(even):
        return even
    pieces = int(seconds / _PIECE_S) + 1
    rate = _varying_rate(rng, rate_per_s, pieces, shape.dispersion)
    # Operational time: a renewal process of rate 1 run through the varying rate's integral, inverted.
    passed = np.concatenate(([0.0], np.cumsum(rate) * _PIECE_S)) / rate_per_s
    wall = np.arange(pieces + 1) * _PIECE_S
    times = np.interp(even, passed, wall, right=np.inf)
    return times[times < seconds]


def _varying_rate(
    rng: np.random.Generator, rate_per_s: float, pieces: int, dispersion: tuple[tuple[float, float], ...]
) -> Floats:
    """A lognormal rate around its mean whose two components bring the wanted dispersion."""
    log_rate = np.zeros(pieces)
    for tau_s, variance in zip(_TAUS_S, _component_variances(rate_per_s, dispersion), strict=True):
        # Of the rate over its mean, to that of its logarithm.
        sigma = math.sqrt(math.log1p(variance))
        keep = math.exp(-_PIECE_S / tau_s)
        noise = rng.normal(0.0, sigma * math.sqrt(1 - keep**2), pieces)
        level = rng.normal(0.0, sigma)
        for i in range(pieces):
            level = keep * level + noise[i]
            log_rate[i] += level - sigma**2 / 2
    return rate_per_s * np.exp(log_rate)


def _component_variances(rate_per_s: float, dispersion: tuple[tuple[float, float], ...]) -> tuple[float, float]:
    """Relative variances of the components, least squares on the windows' dispersion, none negative.

    A rate with exponential correlation of time τ and relative variance v adds to the counts' variance over
    mean at window T: 2·rate·v·τ·(1 - τ/T·(1 - e^(-T/τ))).
    """
    rows, wanted = [], []
    for window_s, ratio in dispersion:
        scale = 1 / (ratio - 1)
        rows.append([scale * 2 * rate_per_s * t * (1 - t / window_s * (1 - math.exp(-window_s / t))) for t in _TAUS_S])
        wanted.append(1.0)
    solution = np.linalg.lstsq(np.array(rows), np.array(wanted), rcond=None)[0]
    fast, slow = (max(0.0, float(value)) for value in solution)
    return fast, slow

"""Estimates a server's tokens per second with n jobs at once from what it computed with other numbers of jobs."""

#: The weight that earlier measurements keep with each new one.
_KEEP = 0.9
#: If all measurements had about the same number of jobs, this part of a token's time is assumed to grow with that
#: number. Measurements whose numbers deviate by this share of their mean count as much as the assumption.
_GROWING_PART, _SPREAD = 0.5, 0.25


class SpeedByLoad:
    """A fit of a job's time per token as a + b·n, because the steps of a batch take longer with each row.

    The tokens per second with n jobs are then n / (a + b·n). Measurements are weighted by their tokens, and newer ones
    count more.
    """

    def __init__(self) -> None:
        #: Weighted sums over the measurements of 1, n, s, n² and n·s, where s is the time per token in seconds.
        self._sums = [0.0] * 5

    def add(self, tokens: float, jobs_s: float, jobs_squared_s: float) -> None:
        """Add a measurement: the tokens, and the integrals of n and n² over its time, in seconds."""
        if tokens <= 0 or jobs_s <= 0:
            return
        n, token_s = jobs_squared_s / jobs_s, jobs_s / tokens
        new = (1.0, n, token_s, n * n, n * token_s)
        self._sums = [_KEEP * before + tokens * value for before, value in zip(self._sums, new, strict=True)]

    def rate(self, n: float) -> float:
        """Return the tokens per second with `n` jobs at once; 0 if nothing was measured."""
        weight, *sums = self._sums
        if not weight:
            return 0.0
        mean_n, mean_s, mean_nn, mean_ns = (value / weight for value in sums)
        doubt = (_SPREAD * mean_n) ** 2
        assumed = _GROWING_PART * mean_s / mean_n
        b = (mean_ns - mean_n * mean_s + doubt * assumed) / (mean_nn - mean_n**2 + doubt)
        # Neither part is negative.
        b = min(max(b, 0.0), mean_s / mean_n)
        return n / (mean_s + b * (n - mean_n))

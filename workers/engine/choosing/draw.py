"""Draws one token for each row from its likeliest tokens: top-p, min-p, temperature and the random choice.

The probabilities are those of llama.cpp's chain of samplers: top-k, top-p, min-p, temperature, and a choice at random.
Everything is computed row by row in 64-bit floats, so that the other rows of a step change nothing.
"""

from typing import Any, NamedTuple

import numpy as np

from workers.engine.choosing.largest import Floats, Ids

Doubles = np.ndarray[Any, np.dtype[np.float64]]
Longs = np.ndarray[Any, np.dtype[np.uint64]]

_INCREMENT, _FIRST, _SECOND = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)


class Rules(NamedTuple):
    """The restrictions of the draw: one number a row in each field."""

    #: The likeliest tokens that have this share of the probability together are kept; 1 keeps all.
    top_p: Doubles
    #: The logarithm of the share of the greatest probability that a token must have; -inf keeps all.
    log_min_p: Floats
    temperature: Doubles


def draw(values: Floats, rules: Rules, chances: Doubles, total: Doubles | None = None) -> Ids:
    """Return the place of the drawn token in each row of `values`. `chances` are uniform in [0, 1).

    The other arguments are those of `weights_of`.
    """
    weights = weights_of(values, rules, total)
    sums = np.cumsum(weights, axis=1)
    places = (sums <= (chances * sums[:, -1])[:, None]).sum(axis=1)
    # Rounding may make the product as large as the sum.
    drawn: Ids = np.minimum(places, (weights > 0).sum(axis=1) - 1).astype(np.int32)
    return drawn


def weights_of(values: Floats, rules: Rules, total: Doubles | None = None) -> Doubles:
    """Return weights to which the probabilities of the tokens in each row of `values` are proportional.

    A row has logits, largest first, and -inf after its last one; it has at least one. `total` is the sum of exp(logit -
    largest logit) of all tokens of each row, if the row has only a part of them.
    """
    largest = values[:, :1]
    # Only infinite logits are as large as an infinite one, and the difference of two of them is not a number.
    relative = np.zeros(values.shape)
    np.subtract(values, largest, out=relative, where=values != largest, dtype=np.float64)
    sums = np.cumsum(np.exp(relative), axis=1)
    # llama.cpp adds tokens until their share is reached.
    share = (sums[:, -1] if total is None else total) * np.where(rules.top_p < 1, rules.top_p, np.inf)
    kept = values >= largest + rules.log_min_p[:, None]
    kept[:, 1:] &= sums[:, :-1] < share[:, None]
    kept[:, 0] = True
    weights: Doubles = np.where(kept, np.exp(relative / rules.temperature[:, None]), 0.0)
    return weights


def chances_at(seeds: Longs, positions: Longs) -> Doubles:
    """Return uniform numbers in [0, 1), each a function of an answer's seed and of a token's position in the answer.

    A token is thus the same whoever generates it and whatever else is in the step. The bits are mixed as SplitMix64
    does (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), so that neighbouring seeds and
    positions have unrelated numbers.
    """
    mixed = seeds + (positions + np.uint64(1)) * _INCREMENT
    mixed = (mixed ^ mixed >> np.uint64(30)) * _FIRST
    mixed = (mixed ^ mixed >> np.uint64(27)) * _SECOND
    mixed ^= mixed >> np.uint64(31)
    chances: Doubles = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return chances

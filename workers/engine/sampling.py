"""Read and validate the sampler settings and the stop strings of a job's payload.

The defaults are part of the HTTP contract: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, no penalties, no seed.
Temperature 0 is greedy sampling: the most likely token is always taken, after the job's penalties and biases are
applied.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.candidates import MAX_CANDIDATES
from shared.jobs.outcomes import EndCode
from workers.engine.events import JobRejected

#: Maximum number of stop strings of one job, and maximum number of characters in one. After each token, the answer is
#: searched for every stop string of the job.
MAX_STOPS, MAX_STOP_CHARS = 16, 256
#: Maximum number of entries of `logit_bias`. Each entry takes some time in every step.
MAX_BIASES = 1024

#: Name of each numeric field of a payload → (default, minimum, maximum).
_RANGES: dict[str, tuple[float, float, float]] = {
    "temperature": (0.8, 0.0, 5.0),
    "top_p": (0.95, 0.0, 1.0),
    "min_p": (0.05, 0.0, 1.0),
    "repeat_penalty": (1.0, 0.01, 10.0),
    "presence_penalty": (0.0, -2.0, 2.0),
    "frequency_penalty": (0.0, -2.0, 2.0),
}
_TOP_K = (40, 0, 1_000_000)
#: Maximum number of alternatives that a job may request for each token with `logprobs`. OpenAI's API has the same
#: limit.
MAX_LOGPROBS = 20
#: Maximum number of entries of `stop_token_ids`, and the largest token id that a payload may name.
MAX_STOP_TOKENS, MAX_TOKEN_ID = 256, 2**31 - 1
_MIN_TOKENS = (0, 0, 10_000_000)
#: A seed may have up to 64 bits and may be negative, because clients send both signed and unsigned seeds.
_SEED_BITS = 64


@dataclass(frozen=True)
class Sampling:
    """The sampler settings of one job. Every field is within its range."""

    temperature: float = 0.8
    #: 0 turns top-k sampling off.
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    #: The three penalties apply to the last 64 generated tokens. The values 1, 0 and 0 turn them off.
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    #: None for a random seed, with which the answer may differ each time.
    seed: int | None = None
    #: Pairs of a token id and the number that is added to its logit.
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop: tuple[str, ...] = ()
    #: How many of the most likely alternatives to return with each token; None if the job requests no logprobs.
    logprobs: int | None = None
    #: Number of tokens of the answer before which neither a token nor a stop string ends it.
    min_tokens: int = 0
    #: Whether the vocabulary's end tokens are never chosen.
    ignore_eos: bool = False
    #: Tokens that end the answer as the vocabulary's end tokens do.
    stop_token_ids: tuple[int, ...] = ()

    @property
    def penalizes(self) -> bool:
        return (self.repeat_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


def read_sampling(payload: Mapping[str, Any]) -> Sampling:
    """Return the sampler settings in a payload. Raises JobRejected, whose message names the invalid field and value."""
    numbers = {name: _number(payload, name) for name in _RANGES}
    return Sampling(
        **numbers,
        top_k=_integer(payload, "top_k", *_TOP_K),
        seed=_seed(payload),
        logit_bias=_logit_bias(payload),
        stop=_stop(payload),
        logprobs=None if payload.get("logprobs") is None else _integer(payload, "logprobs", 0, 0, MAX_LOGPROBS),
        min_tokens=_integer(payload, "min_tokens", *_MIN_TOKENS),
        ignore_eos=_flag(payload, "ignore_eos"),
        stop_token_ids=_stop_token_ids(payload),
    )


def read_candidates(payload: Mapping[str, Any]) -> int:
    """Return how many answers the job generates. Raises JobRejected."""
    return _integer(payload, "n", 1, 1, MAX_CANDIDATES)


def _reject(name: str, value: object, expected: str) -> JobRejected:
    quoted = repr(value)
    if len(quoted) > 80:
        quoted = quoted[:77] + "..."
    return JobRejected(EndCode.INVALID_VALUE, f"{name}={quoted} is not {expected}", name)


def _number(payload: Mapping[str, Any], name: str) -> float:
    default, low, high = _RANGES[name]
    value = payload.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _reject(name, value, f"a number from {low:g} to {high:g}")
    return float(value)


def _integer(payload: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = payload.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _reject(name, value, f"a whole number from {low} to {high}")
    return value


def _flag(payload: Mapping[str, Any], name: str) -> bool:
    value = payload.get(name)
    if value is not None and not isinstance(value, bool):
        raise _reject(name, value, "true or false")
    return bool(value)


def _stop_token_ids(payload: Mapping[str, Any]) -> tuple[int, ...]:
    value = payload.get("stop_token_ids")
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or len(value) > MAX_STOP_TOKENS:
        raise _reject("stop_token_ids", value, f"a list of at most {MAX_STOP_TOKENS} token ids")
    for token in value:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= MAX_TOKEN_ID:
            raise _reject("stop_token_ids", token, "a token id")
    return tuple(value)


def _seed(payload: Mapping[str, Any]) -> int | None:
    value = payload.get("seed")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << _SEED_BITS:
        raise _reject("seed", value, f"a whole number of at most {_SEED_BITS} bits")
    return value


def _logit_bias(payload: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
    value = payload.get("logit_bias")
    if value is None:
        return ()
    expected = f"an object of at most {MAX_BIASES} token ids with numbers from -100 to 100"
    if not isinstance(value, Mapping) or len(value) > MAX_BIASES:
        raise _reject("logit_bias", value, expected)
    pairs = []
    for key, bias in value.items():
        digits = str(key)
        fits = isinstance(bias, int | float) and not isinstance(bias, bool) and -100 <= bias <= 100
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10) or not fits:
            raise _reject("logit_bias", {key: bias}, expected)
        pairs.append((int(digits), float(bias)))
    return tuple(pairs)


def _stop(payload: Mapping[str, Any]) -> tuple[str, ...]:
    value = payload.get("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    expected = f"a text of 1 to {MAX_STOP_CHARS} characters or a list of at most {MAX_STOPS} of them"
    if not isinstance(stops, list | tuple) or len(stops) > MAX_STOPS:
        raise _reject("stop", value, expected)
    for text in stops:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_CHARS:
            raise _reject("stop", text, expected)
    return tuple(stops)


def is_greedy(sampling: Sampling) -> bool:
    """Return whether the most likely token is always taken, so that the answer is the same each time."""
    return math.isclose(sampling.temperature, 0.0, abs_tol=1e-9)

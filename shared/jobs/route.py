"""Routes: a name that clients use like a model's, and the pools that it stands for, in order and with conditions.

The script admit chooses the pool (shared/lua/lib/admission/routes.lua). A route is stored as JSON, which this module
writes, reads and validates.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from shared.errors import ConfigError

#: The most pools of a route, and the most windows of one of its steps.
MAX_POOLS, MAX_WINDOWS = 8, 8
#: Shares and parts of a deadline are stored in ten-thousandths.
WHOLE = 10_000
#: The features of a request that not every pool supports.
FEATURES = ("tools", "images", "schema")
#: The largest number of tokens that a condition may name, and the largest amount in millionths of the currency.
MAX_TOKENS, MAX_AMOUNT = 1_000_000_000, 10**15
_DAY_MINUTES = 1_440
#: A name without spaces and commas, like those in tenants' policies. A `/` may be part of it, as in names of a hub.
_NAME = re.compile(r"[^\s,]{1,200}\Z")


class RouteReason(StrEnum):
    """Why a route's job is in its pool; also a word of the header X-Penstock-Route, and a label of a metric.

    If the first pool of the route did not take the job, this is why.
    """

    #: The pool is the first one of the route for this job.
    FIRST = "first"
    #: The job belongs to the share of requests that the pool gets.
    CANARY = "canary"
    #: The prompt or the asked length is outside the bounds of an earlier pool, or does not fit its context.
    SIZE = "size"
    #: An earlier pool does not take requests that use tools, images, a schema, or the like.
    FEATURES = "features"
    #: In an earlier pool, the job would not end early enough before its deadline.
    DEADLINE = "deadline"
    #: In an earlier pool, the job could cost more than one job may.
    PRICE = "price"
    #: It is not the time of day of an earlier pool.
    WINDOW = "window"
    #: The job is private, and an earlier pool is not marked as local.
    PRIVATE = "private"
    #: The jobs of an earlier pool have cost as much as they may on this day.
    BUDGET = "budget"
    #: An earlier pool would have refused the job.
    SPILL = "spill"
    #: The answer of an earlier pool failed the check that the request names.
    ESCALATED = "escalated"


@dataclass(frozen=True)
class RouteStep:
    """One pool of a route, and the conditions under which it takes a request. None means no condition."""

    #: The served name of the pool's model.
    pool: str
    #: Bounds on the prompt and on the length that the request asks for, in tokens.
    min_prompt: int | None = None
    max_prompt: int | None = None
    max_answer: int | None = None
    #: The features that a request may use here.
    features: tuple[str, ...] | None = None
    #: The predicted end must be within this part of the deadline, in ten-thousandths. An unknown end is not checked.
    end_within: int | None = None
    #: The most that one job may cost, in millionths of the currency.
    max_price_micro: int | None = None
    #: Times of day in UTC, each as minutes (from, to). If the second is not greater, it is one of the next day.
    windows: tuple[tuple[int, int], ...] | None = None
    #: The part of the requests that this pool is for, in ten-thousandths.
    share: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError if a value is invalid; the message names the field and quotes the value."""
        _check_name("pool", self.pool)
        _check_number("min_prompt", self.min_prompt, 1, MAX_TOKENS)
        _check_number("max_prompt", self.max_prompt, 1, MAX_TOKENS)
        _check_number("max_answer", self.max_answer, 1, MAX_TOKENS)
        _check_number("end_within", self.end_within, 1, WHOLE)
        _check_number("max_price_micro", self.max_price_micro, 0, MAX_AMOUNT)
        _check_number("share", self.share, 1, WHOLE - 1)
        if (self.min_prompt or 1) > (self.max_prompt or MAX_TOKENS):
            raise ConfigError(f"min_prompt={self.min_prompt!r} is greater than max_prompt={self.max_prompt!r}")
        for feature in self.features or ():
            if feature not in FEATURES:
                raise ConfigError(f"features={feature!r} is not one of {', '.join(FEATURES)}")
        if self.windows is not None and not 1 <= len(self.windows) <= MAX_WINDOWS:
            raise ConfigError(f"windows={self.windows!r} are not 1 to {MAX_WINDOWS} times of day")
        for window in self.windows or ():
            if len(window) != 2 or not all(_is_number(minute, 0, _DAY_MINUTES) for minute in window):
                raise ConfigError(f"windows={window!r} is not a time of day, as two minutes from 0 to {_DAY_MINUTES}")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are not None."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


@dataclass(frozen=True)
class Route:
    """A name, and the steps that are tried in order."""

    name: str
    steps: tuple[RouteStep, ...]

    def __post_init__(self) -> None:
        """Raise ConfigError if a value is invalid; the message names the field and quotes the value."""
        _check_name("route", self.name)
        if not 1 <= len(self.steps) <= MAX_POOLS:
            raise ConfigError(f"route={self.name!r} has {len(self.steps)} pools; 1 to {MAX_POOLS} are allowed")
        pools = [step.pool for step in self.steps]
        for pool in pools:
            if pools.count(pool) > 1 or pool == self.name:
                why = "is the route itself" if pool == self.name else "is in the route twice"
                raise ConfigError(f"pool={pool!r} {why}")
        if all(step.share is not None for step in self.steps):
            raise ConfigError(f"route={self.name!r} has a share for each pool; one pool must take the other requests")

    def dump(self) -> str:
        return json.dumps({"pools": [step.as_dict() for step in self.steps]}, separators=(",", ":"))


def parse_route(name: str, text: str) -> Route:
    """Return the route that is stored as JSON. Raises ConfigError if it is not valid."""
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError("it is no JSON") from None
    pools = stored.get("pools") if isinstance(stored, dict) else None
    if not isinstance(pools, list) or set(stored) != {"pools"}:
        raise ConfigError("it is no object with a list of pools")
    return Route(name, tuple(_step(pool) for pool in pools[: MAX_POOLS + 1]))


def _step(stored: Any) -> RouteStep:
    known = {field.name for field in fields(RouteStep)}
    if not isinstance(stored, Mapping) or not set(stored) <= known or not isinstance(stored.get("pool"), str):
        raise ConfigError(f"{str(stored)[:80]!r} is no pool with conditions")
    lists = {name: stored[name] for name in ("features", "windows") if stored.get(name) is not None}
    for name, value in lists.items():
        if not isinstance(value, list) or (name == "windows" and not all(isinstance(item, list) for item in value)):
            raise ConfigError(f"{name}={value!r} is no list")
    given = dict(stored)
    if "features" in lists:
        given["features"] = tuple(lists["features"])
    if "windows" in lists:
        given["windows"] = tuple(tuple(window) for window in lists["windows"])
    return RouteStep(**given)


def _check_name(field: str, value: str) -> None:
    if not _NAME.match(value) or not value.isprintable():
        raise ConfigError(
            f"{field}={value!r} is not a name: it needs 1 to 200 printable characters without commas and spaces"
        )


def _is_number(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _check_number(field: str, value: object, low: int, high: int) -> None:
    if value is not None and not _is_number(value, low, high):
        raise ConfigError(f"{field}={value!r} is not a whole number from {low} to {high}")

"""A filter for lists of jobs: by tenant, API key, state, model, reason, time and the beginning of the id."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from shared.durations import utc_time
from shared.errors import ConfigError
from shared.jobs.outcomes import EndCode, FinishReason
from shared.jobs.states import ACTIVE_STATES, TERMINAL_STATES, JobState

#: Words for several states: those of inflight jobs, and those of ended jobs.
_SETS_OF_STATES = {"inflight": ACTIVE_STATES, "ended": TERMINAL_STATES}
_REASONS = {*EndCode, *FinishReason}
#: The longest text of a field, in characters: that of a model's name.
_MAX_CHARS = 256

_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_ID_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_AGO = re.compile(r"([0-9]{1,6})(s|m|h|d)\Z")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_TIME_OF_DAY = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?Z?\Z")


class InvalidFilter(ConfigError):
    """A field of a filter has an invalid value; the message names the field and quotes the value."""

    def __init__(self, field: str, value: str, problem: str) -> None:
        self.field = field
        super().__init__(f"{field}={value[:60]!r} {problem}")


@dataclass(frozen=True)
class JobFilter:
    """The wanted jobs. A field that is empty or None selects all jobs."""

    tenant: str = ""
    #: The label of the API key that submitted the job.
    key: str = ""
    states: frozenset[JobState] = frozenset()
    #: The served name of the model of the pool that the job is in.
    model: str = ""
    #: The error code of a job or, if it has none, its finish reason.
    reason: str = ""
    #: The first and the last time of admission, in ms since the epoch by the store's clock.
    since_ms: int | None = None
    until_ms: int | None = None
    #: The beginning of the id.
    id: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether all jobs are wanted, or all of some time."""
        return not (self.tenant or self.key or self.states or self.model or self.reason or self.id)

    @property
    def has_only_inflight(self) -> bool:
        """Whether no ended job can be wanted."""
        return bool(self.states) and self.states <= ACTIVE_STATES

    def as_query(self) -> dict[str, str]:
        """Return the fields that are set, as the texts from which `parse_filter` makes an equal filter."""
        values = {
            "tenant": self.tenant,
            "key": self.key,
            "state": ",".join(state for state in JobState if state in self.states),
            "model": self.model,
            "reason": self.reason,
            "since": _format_time(self.since_ms),
            "until": _format_time(self.until_ms),
            "id": self.id,
        }
        return {name: value for name, value in values.items() if value}

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.as_query().items()) or "all"


#: The names of the fields of a filter in a query.
FILTER_FIELDS = ("tenant", "key", "state", "model", "reason", "since", "until", "id")


def parse_filter(given: Mapping[str, str], now_ms: int) -> JobFilter:
    """Return the filter with the fields of FILTER_FIELDS in `given`; other names are ignored, and "" sets no field.

    `now_ms` is the store's time, from which times such as `15m` and `14:00` are counted. Raises InvalidFilter.
    """
    texts = {name: given.get(name, "").strip() for name in FILTER_FIELDS}
    for name, value in texts.items():
        if len(value) > _MAX_CHARS:
            raise InvalidFilter(name, value, f"has more than {_MAX_CHARS} characters")
    _require("tenant", texts["tenant"], _TENANT.match, "is not a tenant name: 1 to 64 letters, digits, '_' and '-'")
    _require("id", texts["id"], _ID_PREFIX.match, "is not the beginning of an id: 1 to 64 letters, digits, '_' and '-'")
    _require("reason", texts["reason"], _REASONS.__contains__, f"is not one of {', '.join(sorted(_REASONS))}")
    since_ms, until_ms = (parse_time(name, texts[name], now_ms) if texts[name] else None for name in ("since", "until"))
    if since_ms is not None and until_ms is not None and since_ms > until_ms:
        raise InvalidFilter("until", texts["until"], f"is before since={texts['since']!r}")
    return JobFilter(
        tenant=texts["tenant"],
        key=texts["key"],
        states=_parse_states(texts["state"]),
        model=texts["model"],
        reason=texts["reason"],
        since_ms=since_ms,
        until_ms=until_ms,
        id=texts["id"],
    )


def _require(field: str, value: str, is_valid: Callable[[str], object], problem: str) -> None:
    if value and not is_valid(value):
        raise InvalidFilter(field, value, problem)


def _parse_states(text: str) -> frozenset[JobState]:
    """Return the states in a list with commas. Raises InvalidFilter."""
    states: set[JobState] = set()
    for word in filter(None, (part.strip() for part in text.split(","))):
        if word not in _SETS_OF_STATES and word not in set(JobState):
            raise InvalidFilter("state", word, f"is not one of {', '.join([*JobState, *_SETS_OF_STATES])}")
        states |= _SETS_OF_STATES.get(word) or {JobState(word)}
    return frozenset(states)


def parse_time(field: str, text: str, now_ms: int) -> int:
    """Return a time in ms since the epoch: a time ago such as `15m`, a time of day, or a date with or without a time.

    Times without a zone are UTC. A time of day is the last one that is not later than `now_ms`. Raises InvalidFilter.
    """
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    try:
        if ago := _AGO.match(text):
            time = now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        elif of_day := _TIME_OF_DAY.match(text):
            hour, minute, second = (int(part or 0) for part in of_day.groups())
            time = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
            time -= timedelta(days=int(time > now))
        else:
            time = datetime.fromisoformat(text)
            time = time.replace(tzinfo=UTC) if time.tzinfo is None else time
        # A time before the epoch is as good as the epoch.
        time_ms = max(0, round(time.timestamp() * 1000))
        # In a zone behind UTC, it may be in the year 10000, which no date can express.
        datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError):
        problem = "is not a time; write it like 15m (ago), 14:00 (UTC), 2026-11-28 or 2026-11-28T14:00:30Z"
        raise InvalidFilter(field, text, problem) from None
    return time_ms


def _format_time(time_ms: int | None) -> str:
    """Return a time in ISO 8601 and UTC; "" for None."""
    if time_ms is None:
        return ""
    text = utc_time(time_ms).isoformat(timespec="milliseconds" if time_ms % 1000 else "seconds")
    return text.replace("+00:00", "Z")

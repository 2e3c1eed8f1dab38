"""Structured logging: each line has one event name and fields, and never contains a prompt or an answer.

By default, lines are text on a terminal and JSON elsewhere. Modules call `log = get_logger()` and
`log.info("job.ended", job=…, tenant=…)`: the first argument is the name of the event, and the others are fields. Log
lines are written to stderr; the output of commands is written to stdout.
"""

import json
import logging
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from functools import partial
from typing import Any

# structlog imports rich, if it is installed, for tracebacks that print local variables. These can hold prompts, so they
# are never used, and without rich a process starts a tenth of a second sooner.
_RICH = sys.modules.get("rich")
sys.modules["rich"] = None  # type: ignore[assignment]  # importing it fails
import structlog  # noqa: E402 - rich is away now
from structlog.typing import EventDict, Processor, WrappedLogger  # noqa: E402 - see above

del sys.modules["rich"]
if _RICH is not None:
    sys.modules["rich"] = _RICH


#: The fields of the request that this thread or greenlet handles.
_REQUEST: ContextVar[dict[str, str] | None] = ContextVar("request", default=None)


class _CurrentLogger:
    """The logger of the newest configuration, looked up once: structlog would make one for each line."""

    #: None until `configure` is called.
    bound: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bound or structlog.get_logger(), name)


CURRENT = _CurrentLogger()


def get_logger() -> Any:
    """Return the logger, which may be kept: `configure` changes what it does."""
    return CURRENT


#: Fields that may hold a prompt or an answer. In the log, only the length of such a value is written.
TEXT_FIELDS = frozenset({"prompt", "messages", "text", "answer", "content", "payload", "body", "result", "delta"})


def configure(level: str = "info", fmt: str = "auto", **bound: str | int) -> None:
    """Set up this process's logging; every line carries the `bound` fields (such as `room="web"`).

    `level` and `fmt` are PENSTOCK_LOG_LEVEL and PENSTOCK_LOG_FORMAT. Messages that libraries log
    with Python's logging module get the same format; those below `warning` are dropped unless `level` is debug.
    """
    as_text = sys.stderr.isatty() if fmt == "auto" else fmt == "text"
    min_level = logging.getLevelNamesMapping()[level.upper()]
    processors: list[Processor] = [
        _add_request_fields,
        _AddBoundFields(bound),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        _mask_texts,
    ]
    render: Processor
    if as_text:
        colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        # The default exception formatter prints local variables, which can hold prompts.
        formatter = structlog.dev.plain_traceback
        render = structlog.dev.ConsoleRenderer(colors=colors, timestamp_key="time", exception_formatter=formatter)
    else:
        processors.append(structlog.processors.format_exc_info)
        processors.append(_event_first)
        render = _render_json
    structlog.configure(
        processors=[*processors, render],
        wrapper_class=structlog.make_filtering_bound_logger(min_level),
        logger_factory=_StderrLogger,
        cache_logger_on_first_use=False,
    )
    CURRENT.bound = structlog.get_logger().bind()
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*processors, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(min_level if level == "debug" else max(min_level, logging.WARNING))


def bind_request(**fields: str) -> None:
    """Add only these fields to every further line of this thread or greenlet, and none that were bound before."""
    _REQUEST.set(fields)


class LimitedEvent:
    """An event that anybody can cause as often as they like, such as a malformed request without a key.

    At most one line is logged in `interval_s` seconds, so that nobody can fill the log. The field `left_out` of a line
    is the number of lines that were not logged since the one before. May be used on any thread.
    """

    def __init__(self, event: str, interval_s: float = 1.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._event, self._interval_s, self._monotonic = event, interval_s, monotonic
        self._lock = threading.Lock()
        #: When the next line may be logged, and how many were left out since the last one; guarded by the lock.
        self._next_s, self._left_out = float("-inf"), 0

    def log(self, level: str, **fields: Any) -> None:
        """Log the event at this level, such as `info`, unless a line was logged a moment ago."""
        now_s = self._monotonic()
        with self._lock:
            if now_s < self._next_s:
                self._left_out += 1
                return
            left_out, self._left_out, self._next_s = self._left_out, 0, now_s + self._interval_s
        structlog.get_logger().log(
            logging.getLevelNamesMapping()[level.upper()], self._event, left_out=left_out, **fields
        )


#: How many keys of one event are remembered.
_MOST_KEYS = 1_024


class LimitedEvents:
    """An event that many can cause, each as often as they like: a `LimitedEvent` for each key that was used lately."""

    def __init__(self, event: str, interval_s: float = 1.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._make = partial(LimitedEvent, event, interval_s, monotonic)
        self._lock = threading.Lock()
        self._events: OrderedDict[Hashable, LimitedEvent] = OrderedDict()

    def log(self, level: str, key: Hashable, **fields: Any) -> None:
        """Log the event at this level, unless a line with this key was logged a moment ago."""
        with self._lock:
            event = self._events.pop(key, None) or self._make()
            self._events[key] = event
            if len(self._events) > _MOST_KEYS:
                self._events.popitem(last=False)
        event.log(level, **fields)


class _StderrLogger:
    """Writes lines to the current `sys.stderr`; write errors are ignored, so that logging never raises."""

    def __init__(self, *_args: Any) -> None: ...

    def msg(self, line: str) -> None:
        try:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            return

    debug = info = warning = error = critical = exception = msg


class _AddBoundFields:
    """Adds each of the process's bound fields to every line that does not already have a field of that name."""

    def __init__(self, fields: dict[str, str | int]) -> None:
        self._fields = fields

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        for name, value in self._fields.items():
            event.setdefault(name, value)
        return event


def _add_request_fields(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    for name, value in (_REQUEST.get() or {}).items():
        event.setdefault(name, value)
    return event


#: Made once: `json.dumps` makes one for each line.
_JSON = json.JSONEncoder(default=str, ensure_ascii=False)


def _render_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    return _JSON.encode(event)


def _event_first(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Put the fields `time`, `level` and `event` first, which makes JSON lines easier to read."""
    first = {name: event.pop(name) for name in ("time", "level", "event") if name in event}
    return {**first, **event}


def _mask_texts(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace the value of each field in TEXT_FIELDS with a note of its length."""
    for name in TEXT_FIELDS & event.keys():
        event[name] = f"<{len(str(event[name]))} characters>"
    return event

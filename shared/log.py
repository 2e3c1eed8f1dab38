"""Structured logging: one event name a line, job and tenant bound; never a prompt or an answer.

JSON off terminals, text on.
Modules say `log = structlog.get_logger()` and `log.info("job.ended", job=…, tenant=…)`: the event is
a dotted name, everything else a field. Lines go to stderr; data of commands goes to stdout.
"""

import logging
import os
import sys
from contextlib import AbstractContextManager
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

#: Fields under which texts of people travel in this project. Their length is all that a log may know.
TEXTS = frozenset({"prompt", "messages", "text", "answer", "content", "payload", "body", "result", "delta"})


def configure(level: str = "info", fmt: str = "auto", **bound: str | int) -> None:
    """Set up this process's logging; `bound` fields (`room="web"`) stand on every line.

    `level` and `fmt` are PENSTOCK_LOG_LEVEL and PENSTOCK_LOG_FORMAT. Libraries that use Python's
    logging come out the same way, from `warning` up unless the level is debug.
    """
    as_text = sys.stderr.isatty() if fmt == "auto" else fmt == "text"
    number = logging.getLevelNamesMapping()[level.upper()]
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _Bound(bound),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        _without_texts,
    ]
    render: Processor
    if as_text:
        colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        # The default formatter would print local variables, among them prompts.
        plain = structlog.dev.plain_traceback
        render = structlog.dev.ConsoleRenderer(colors=colors, timestamp_key="time", exception_formatter=plain)
    else:
        before.append(structlog.processors.format_exc_info)
        before.append(_event_first)
        render = structlog.processors.JSONRenderer(default=str, ensure_ascii=False)
    structlog.configure(
        processors=[*before, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=_Stderr,
        # Set up anew by tests and after a fork; a look-up costs 2 µs, and a job writes a line or two.
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*before, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number if level == "debug" else max(number, logging.WARNING))


def about(job: str, tenant: str) -> AbstractContextManager[None]:
    """Bind a job and its tenant to every line that this thread or greenlet writes inside the block."""
    return structlog.contextvars.bound_contextvars(job=job, tenant=tenant)


class _Stderr:
    """Writes lines to stderr as it is now; a log that cannot be written never fails what it tells of."""

    def __init__(self, *_args: Any) -> None: ...

    def msg(self, line: str) -> None:
        try:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            return

    debug = info = warning = error = critical = exception = msg


class _Bound:
    """Adds the process's own fields to a line that does not have them."""

    def __init__(self, fields: dict[str, str | int]) -> None:
        self._fields = fields

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        for name, value in self._fields.items():
            event.setdefault(name, value)
        return event


def _event_first(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """For people who read JSON lines: when, how grave and what stand before everything else."""
    first = {name: event.pop(name) for name in ("time", "level", "event") if name in event}
    return {**first, **event}


def _without_texts(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    for name in TEXTS & event.keys():
        event[name] = f"<{len(str(event[name]))} characters>"
    return event

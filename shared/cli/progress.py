"""Show on stderr how a submitted job progresses: one live line on a terminal, else one line for each change."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shared.cli import output
from shared.cli.client import YieldAnswer
from shared.cli.durations import format_duration

if TYPE_CHECKING:
    from rich.status import Status


class Progress:
    """Shows the progress of one job. Use it as a context manager, which removes the live line on exit."""

    def __init__(self) -> None:
        self._status: Status | None = None
        self._last_change = ""

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("submitting")
            self._status.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.hide()

    def hide(self) -> None:
        """Remove the live line, so that the answer can be written on the same terminal."""
        if self._status is not None:
            self._status.stop()

    def show_yield(self, refusal: YieldAnswer) -> None:
        self._show("yield", f"{refusal.message}; retrying in {format_duration(refusal.retry_hint_ms)}")

    def show_job(self, job: dict[str, Any]) -> None:
        """Show the job's state as the last poll or event reported it."""
        queue = job.get("queue") or {}
        line = str(job.get("status"))
        if line == "queued" and queue.get("position"):
            line += f", position {queue['position']} in the queue of tenant {job.get('tenant')}"
            if queue.get("eta_ms") is not None:
                self._show(line, f"{line}, predicted to end in {format_duration(queue['eta_ms'])}")
                return
        if line == "running" and (job.get("attempts") or 0) > 1:
            line += f", attempt {job['attempts']}"
        self._show(line, line)

    def _show(self, change: str, line: str) -> None:
        """Show `line`. Outside a terminal, write it only if `change` is not the same as in the previous call."""
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(output.escape_controls(line)))
        elif change != self._last_change:
            output.write_note(line)
        self._last_change = change

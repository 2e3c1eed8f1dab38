"""Show on stderr how a job or a batch progresses: live on a terminal, else a line for each change or each tenth."""

import sys
from types import TracebackType
from typing import Any, Self

from shared.cli import output
from shared.cli.client import YieldAnswer
from shared.durations import format_duration


class _Live:
    """Something that moves on a terminal. Use it as a context manager, which removes it on exit."""

    #: The drawing of rich; None if stderr is not a terminal.
    _live: Any = None

    def __enter__(self) -> Self:
        self.show_again()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.hide()

    def hide(self) -> None:
        """Remove it, so that something else can be written on the same terminal."""
        if self._live is not None:
            self._live.stop()

    def show_again(self) -> None:
        if self._live is not None:
            self._live.start()


class Progress(_Live):
    """Shows the progress of one job in a line."""

    def __init__(self) -> None:
        self._last_change = ""
        if sys.stderr.isatty():
            from rich.console import Console

            self._live = Console(stderr=True).status("submitting")

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
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(output.escape_controls(line)))
        elif change != self._last_change:
            output.write_note(line)
        self._last_change = change


class BatchProgress(_Live):
    """Shows the progress of one batch as a bar."""

    def __init__(self) -> None:
        self._last: tuple[str, int] | None = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            self._live = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[count]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._live.add_task("upload", total=None, count="")

    def show_upload(self, sent: int, total: int) -> None:
        self._show("upload", sent, total, f"{sent:,} of {total:,} bytes")

    def show_batch(self, batch: dict[str, Any]) -> None:
        counts = batch.get("request_counts") or {}
        done = int(counts.get("completed") or 0) + int(counts.get("failed") or 0)
        text = f"{done:,} of {counts.get('total') or 0:,} lines"
        text += f", {counts['failed']:,} failed" if counts.get("failed") else ""
        self._show(str(batch.get("status")), done, int(counts.get("total") or 0), text)

    def _show(self, what: str, done: int, total: int, text: str) -> None:
        if self._live is not None:
            description = output.escape_controls(what)
            self._live.update(self._task, description=description, completed=done, total=total or None, count=text)
            return
        tenth = (what, 10 * done // total if total else 0)
        if tenth != self._last:
            output.write_note(f"{what}: {text}")
        self._last = tenth

"""Show on stderr how a batch progresses: a bar on a terminal, else a line for each status and each tenth."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shared.cli import output

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class BatchProgress:
    """Shows the progress of one batch. Use it as a context manager, which removes the bar on exit."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._last: tuple[str, int] | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[count]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("upload", total=None, count="")
            self._bar.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.hide()

    def hide(self) -> None:
        """Remove the bar, so that something else can be written on the same terminal."""
        if self._bar is not None:
            self._bar.stop()

    def show_again(self) -> None:
        if self._bar is not None:
            self._bar.start()

    def show_upload(self, sent: int, total: int) -> None:
        self._show("upload", sent, total, f"{sent:,} of {total:,} bytes")

    def show_batch(self, batch: dict[str, Any]) -> None:
        counts = batch.get("request_counts") or {}
        done = int(counts.get("completed") or 0) + int(counts.get("failed") or 0)
        text = f"{done:,} of {counts.get('total') or 0:,} lines"
        text += f", {counts['failed']:,} failed" if counts.get("failed") else ""
        self._show(str(batch.get("status")), done, int(counts.get("total") or 0), text)

    def _show(self, what: str, done: int, total: int, text: str) -> None:
        if self._bar is not None and self._task is not None:
            description = output.escape_controls(what)
            self._bar.update(self._task, description=description, completed=done, total=total or None, count=text)
            return
        tenth = (what, 10 * done // total if total else 0)
        if tenth != self._last:
            output.write_note(f"{what}: {text}")
        self._last = tenth

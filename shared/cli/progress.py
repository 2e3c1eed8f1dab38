"""What a person sees on stderr while a job waits and runs: a live line on a terminal, else a line a change."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shared.cli import output
from shared.cli.client import Yielded
from shared.cli.durations import shown_ms

if TYPE_CHECKING:
    from rich.status import Status


class Progress:
    """A context: the live line is gone when it ends."""

    def __init__(self) -> None:
        self._status: Status | None = None
        self._told = ""

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
        """Make room for the answer on the same terminal."""
        if self._status is not None:
            self._status.stop()

    def yielded(self, refusal: Yielded) -> None:
        """The door said `yield`, and we wait to come back."""
        self._tell("yield", f"{refusal.message}; coming back in {shown_ms(refusal.retry_hint_ms)}")

    def seen(self, job: dict[str, Any]) -> None:
        """A poll found the job like this."""
        queue = job.get("queue") or {}
        told = str(job.get("status"))
        if told == "queued" and queue.get("position"):
            told += f", number {queue['position']} of {job.get('tenant')}'s"
            if queue.get("eta_ms") is not None:
                self._tell(told, f"{told}, about {shown_ms(queue['eta_ms'])}")
                return
        if told == "running" and (job.get("attempts") or 0) > 1:
            told += f", attempt {job['attempts']}"
        self._tell(told, told)

    def _tell(self, change: str, line: str) -> None:
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(output.visible(line)))
        elif change != self._told:
            output.note(line)
        self._told = change

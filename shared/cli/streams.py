"""Guards the standard streams of `penstock`: a character, a full disk or a closed stream leaves no traceback.

Characters that the output's encoding lacks are replaced. If stdout cannot be written, the command ends with one line
about it; if stderr cannot, its notes are left out, because the data on stdout matters more.
"""

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import Any

from shared.errors import PenstockError


class OutputError(PenstockError):
    """Stdout cannot be written: its disk is full, for example, or it was closed before the start."""


class _Guarded:
    """A text or binary stream whose errors are OutputError, or are ignored; after the first one it writes nothing."""

    def __init__(self, stream: Any, *, is_closed: bool = False, ignores_errors: bool = False) -> None:
        self._stream, self._is_closed, self._ignores_errors = stream, is_closed, ignores_errors
        self._has_failed = False

    def write(self, data: Any) -> int:
        if self._is_closed:
            self._fail(OutputError("stdout is closed, so nothing can be written"))
        return int(self._call(self._stream.write, data) or 0)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._call(self._stream.flush)

    @property
    def buffer(self) -> "_Guarded":
        return _Guarded(self._stream.buffer, is_closed=self._is_closed, ignores_errors=self._ignores_errors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _call(self, method: Any, *arguments: Any) -> Any:
        if self._has_failed or self._is_closed:
            return None
        try:
            return method(*arguments)
        except OSError as error:
            # The unwritten text is still in the buffer, and writing it would fail again when Python ends.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if isinstance(error, BrokenPipeError) and not self._ignores_errors:
                raise
            self._fail(OutputError(f"stdout cannot be written: {error.strerror or error}"))
            return None

    def _fail(self, error: OutputError) -> None:
        has_failed, self._has_failed, self._is_closed = self._has_failed, True, False
        if not (has_failed or self._ignores_errors):
            raise error


def guard() -> None:
    """Guard the standard streams of this process. Called once, when it starts."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one. Otherwise a connection would get it, and what is printed.
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - open until the process ends
    sys.stdout = _guarded(sys.stdout, ignores_errors=False)
    sys.stderr = _guarded(sys.stderr, ignores_errors=True)


def _guarded(stream: Any, *, ignores_errors: bool) -> Any:
    if isinstance(stream, io.TextIOWrapper) and stream.errors in {"strict", "surrogateescape"}:
        stream.reconfigure(errors="replace")
    is_closed = stream is None
    stream = stream or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
    return _Guarded(stream, is_closed=is_closed, ignores_errors=ignores_errors)

"""Prints how far a build of llama.cpp is: pip install -v … | python -m tools.build_progress LOG.

LOG gets all of pip's output. This program shows the percentage every few seconds and, if pip has failed, the end.
"""

import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

#: Ninja's `[12/340] Building …` and make's `[ 12%] Building …`.
_STEP = re.compile(r"\[\s*(?:(\d+)/(\d+)|(\d+)%)\]")

#: Lines of pip that say what it has begun or done.
_NEWS = ("Collecting ", "Building wheel", "Successfully installed", "Successfully built")

#: Seconds between two lines about the same build.
_EVERY_S = 5.0

_TAIL = 30


def percent(line: str) -> int | None:
    """Return how much of the build was done when the line was written, or None if the line does not say so."""
    found = _STEP.search(line)
    if found is None:
        return None
    step, steps, share = found.groups()
    return int(share) if share else 100 * int(step) // max(1, int(steps))


def watch(output: Iterable[str], log: TextIO, show: Callable[[str], None], now: Callable[[], float]) -> bool:
    """Copy the output to the log and show its progress. Returns whether pip has ended with success."""
    tail: deque[str] = deque(maxlen=_TAIL)
    start, shown_at, shown, succeeded = now(), 0.0, -1, False
    for line in output:
        log.write(line)
        log.flush()
        text = line.strip()
        tail.append(text)
        done = percent(text)
        if done is not None and done > shown and (now() - shown_at >= _EVERY_S or shown < 0):
            shown_at, shown = now(), done
            show(f"llama.cpp is built to {done} % after {shown_at - start:.0f} s")
        elif text.startswith(_NEWS):
            show(text)
        succeeded = text.startswith("Successfully ") or (succeeded and not text.startswith("ERROR: "))
    if not succeeded:
        show("\n".join(tail))
    return succeeded


def main(log: Path) -> int:
    """Watch the standard input. Returns the exit code."""
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    with log.open("w") as file:
        succeeded = watch(sys.stdin, file, lambda text: print(text, flush=True), time.monotonic)
    if not succeeded:
        print(f"pip has failed; its whole output is in {log}", file=sys.stderr)
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

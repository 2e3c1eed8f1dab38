"""Which new text goes out now: a job's first at once, then at most every 50 ms on a common tick.

The tick is common so that all jobs of a worker share one call. What was sent without an answer is
sent again exactly as it was, so that the store can tell it by its token count.
"""

import math
from dataclasses import dataclass, field

#: Faster than a reader's eye, and at most 20 calls a second however many jobs run.
INTERVAL_S = 0.05


@dataclass(frozen=True)
class Chunk:
    """New text of one job and the tokens generated up to its end."""

    key: str
    text: str
    completion_tokens: int


@dataclass
class _Line:
    """What one job has to say; only the delivering thread touches it."""

    #: Number of the first tick at which it may speak again.
    not_before: int = 0
    told: bool = False
    parts: list[str] = field(default_factory=list)
    completion_tokens: int = 0


class TextPacing:
    """Text waiting to be appended, by job."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._in_doubt: list[Chunk] = []

    def add(self, key: str, text: str, completion_tokens: int) -> None:
        """Note new text of a job."""
        line = self._lines.setdefault(key, _Line())
        line.parts.append(text)
        line.completion_tokens = completion_tokens

    def due(self, now_s: float, ending: set[str]) -> list[Chunk]:
        """What is to be sent at this moment; jobs in `ending` are not paced, for nothing follows.

        Until `sent` is called, the same again.
        """
        if not self._in_doubt:
            tick = math.floor(now_s / INTERVAL_S)
            for key, line in self._lines.items():
                if line.parts and (tick >= line.not_before or key in ending):
                    self._in_doubt.append(Chunk(key, "".join(line.parts), line.completion_tokens))
                    line.parts.clear()
        return list(self._in_doubt)

    def sent(self, now_s: float) -> None:
        """The last answer of `due` has arrived."""
        tick = math.floor(now_s / INTERVAL_S)
        for chunk in self._in_doubt:
            line = self._lines.get(chunk.key)
            if line is not None:
                # A first text falls between two ticks: the next but one is a whole interval later.
                line.not_before = tick + (1 if line.told else 2)
                line.told = True
        self._in_doubt.clear()

    def forget(self, key: str) -> None:
        """The job has ended or is no longer ours."""
        self._lines.pop(key, None)
        self._in_doubt = [chunk for chunk in self._in_doubt if chunk.key != key]

    @property
    def waits(self) -> bool:
        """Whether some text is not sent or not answered for."""
        return bool(self._in_doubt) or any(line.parts for line in self._lines.values())

    def next_tick_s(self, now_s: float) -> float | None:
        """When to look again for text that is due; None while no job has said anything."""
        if self._in_doubt:
            return now_s
        return (math.floor(now_s / INTERVAL_S) + 1) * INTERVAL_S if self._lines else None

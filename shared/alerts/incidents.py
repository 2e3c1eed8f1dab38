"""Since when conditions hold and what has been told of them; pure, except for the time, which is a parameter.

All times are in ms since the epoch. The state is kept as JSON, in the store or in a file, so that the next process
continues where one has ended. JSON that another program has changed counts as an empty state.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from shared.alerts.conditions import Condition, Finding

#: How many incidents are kept. Others are noted when one of these has ended.
MAX_OPEN = 100
#: The wait after the first failed try to send, and the longest, in ms.
FIRST_REST_MS, LONGEST_REST_MS = 5_000, 600_000

_CONDITIONS = frozenset(Condition)


@dataclass
class Incident:
    """One condition that holds for one subject, or has held and is not told to have ended."""

    condition: str
    subject: str
    text: str
    since_ms: int
    #: When it was last seen to hold.
    seen_ms: int
    #: When it was last told; 0 if it was not.
    told_ms: int = 0

    @property
    def key(self) -> str:
        return f"{self.condition}|{self.subject}"


@dataclass(frozen=True)
class Line:
    """A part of a message: an incident that begins, still holds, or has ended."""

    status: Literal["firing", "resolved"]
    incident: Incident


@dataclass
class Incidents:
    """All incidents, and how the last tries to send a message ended."""

    open: dict[str, Incident] = field(default_factory=dict)
    #: How many tries have failed since the last one that succeeded, when the next may be made, and how the last ended.
    tries: int = 0
    next_ms: int = 0
    last: str = ""
    #: Counters of promises at earlier times: the time, kept, broken.
    samples: list[tuple[int, int, int]] = field(default_factory=list)

    def note(self, findings: Sequence[Finding], now_ms: int, *, unknown: Collection[Condition] = ()) -> None:
        """Take over the findings of now. Incidents of the conditions in `unknown` stay as they are."""
        found = {finding.key: finding for finding in findings}
        for key, incident in list(self.open.items()):
            if key in found or incident.condition in unknown:
                incident.seen_ms = now_ms
                incident.text = found[key].text if key in found else incident.text
            elif not incident.told_ms:
                del self.open[key]
        for key, new in found.items():
            if key not in self.open and len(self.open) < MAX_OPEN:
                self.open[key] = Incident(new.condition.value, new.subject, new.text, now_ms, now_ms)

    def due(self, now_ms: int, *, for_ms: int, repeat_ms: int) -> list[Line]:
        """Return the lines to tell now, the oldest first; nothing while a failed message waits for its next try.

        The end of an incident is told after it has not been seen for `for_ms`. If it is seen again before, it is the
        same incident.
        """
        if self.tries and now_ms < self.next_ms <= now_ms + LONGEST_REST_MS:
            return []
        lines = []
        for incident in sorted(self.open.values(), key=lambda incident: incident.since_ms):
            if incident.seen_ms < now_ms:
                if now_ms - incident.seen_ms >= for_ms:
                    lines.append(Line("resolved", incident))
            elif not incident.told_ms:
                if now_ms - incident.since_ms >= for_ms:
                    lines.append(Line("firing", incident))
            elif now_ms - incident.told_ms >= repeat_ms:
                lines.append(Line("firing", incident))
        return lines

    def told(self, lines: Sequence[Line], now_ms: int) -> None:
        """Note that these were told."""
        self.tries, self.next_ms, self.last = 0, 0, "delivered"
        for line in lines:
            if line.status == "resolved":
                self.open.pop(line.incident.key, None)
            else:
                line.incident.told_ms = now_ms

    def failed(self, result: str, now_ms: int, jitter: Callable[[], float]) -> None:
        """Note that a try has failed; the wait doubles, and the jitter (0 to 1) spreads it."""
        longest = min(LONGEST_REST_MS, FIRST_REST_MS * 2 ** min(self.tries, 20))
        self.tries, self.last = self.tries + 1, result
        self.next_ms = now_ms + int(longest * (0.5 + 0.5 * jitter()))

    def as_text(self) -> str:
        return json.dumps(
            {
                "open": [asdict(incident) for incident in self.open.values()],
                "tries": self.tries,
                "next_ms": self.next_ms,
                "last": self.last,
                "samples": self.samples,
            },
            separators=(",", ":"),
        )


def parse_incidents(stored: str, now_ms: int) -> Incidents:
    """Return the state in a text; an empty one if another program has spoiled it. Times in the future become now."""
    try:
        given: dict[str, Any] = json.loads(stored) if stored else {}
        listed = [_incident(one, now_ms) for one in given.get("open", [])[:MAX_OPEN]]
        samples = [tuple(map(int, sample)) for sample in given.get("samples", [])[-16:]]
        tries, next_ms = int(given.get("tries", 0)), int(given.get("next_ms", 0))
        if any(len(sample) != 3 for sample in samples):
            return Incidents()
        return Incidents(
            {incident.key: incident for incident in listed if incident is not None},
            tries,
            next_ms,
            str(given.get("last", ""))[:64],
            [(sample[0], sample[1], sample[2]) for sample in samples],
        )
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError):
        return Incidents()


def _incident(given: dict[str, Any], now_ms: int) -> Incident | None:
    times = [min(now_ms, max(0, int(given[name]))) for name in ("since_ms", "seen_ms", "told_ms")]
    if given["condition"] not in _CONDITIONS:
        return None
    return Incident(given["condition"], str(given["subject"])[:300], str(given["text"])[:300], *times)

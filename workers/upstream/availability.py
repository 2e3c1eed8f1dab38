"""Whether the upstream takes requests now: open, paused for a while at its own request, or away and probed.

Used by the event loop's thread only, except for `is_open` and `is_live`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

import structlog

from shared.clock import Clock

log = structlog.get_logger()

#: The delays between two probes of an upstream that is away, in seconds: the first, and the longest. Each is up to a
#: fifth longer at random, so that the workers of one upstream do not probe it at the same time.
_FIRST_PROBE_S, _LONGEST_PROBE_S = 0.1, 2.0
#: A worker that pauses for longer than this does not count as live, like one without heartbeats.
_LIVE_PAUSE_S = 5.0


class Availability:
    """The state of the upstream, as this worker has observed it."""

    def __init__(self, probe: Callable[[], Awaitable[str]], on_open: Callable[[], None], clock: Clock) -> None:
        """Create the state of an upstream that nobody has reached yet.

        `probe` returns "" if the upstream answers, otherwise why it does not. `on_open` is called when the upstream
        takes requests again.
        """
        self._probe, self._on_open, self._clock = probe, on_open, clock
        self._away = True
        self._paused_until_s = 0.0
        self._probing: asyncio.Task[None] | None = None
        #: Ends the wait between two probes.
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether jobs can be sent to the upstream now. May be called from any thread."""
        return not self._away and self._clock.monotonic() >= self._paused_until_s

    @property
    def is_live(self) -> bool:
        """Whether the worker counts as live: the upstream answers, or will soon. May be called from any thread."""
        return not self._away and self._paused_until_s - self._clock.monotonic() <= _LIVE_PAUSE_S

    def start(self) -> None:
        """Begin to probe the upstream, which is away until it has answered for the first time."""
        self._probing = asyncio.create_task(self._probe_until_back())

    def note_away(self, why: str) -> None:
        """Record that the upstream was not reached, and probe it until it answers."""
        if not self._away:
            log.warning("upstream.away", why=why)
            self._away = True
            self._probing = asyncio.create_task(self._probe_until_back())

    def note_busy(self, pause_s: float, why: str) -> None:
        """Record that the upstream takes no requests for this long. A shorter pause does not end a longer one."""
        until_s = self._clock.monotonic() + pause_s
        if until_s <= self._paused_until_s:
            return
        log.info("upstream.paused", why=why, pause_s=round(pause_s, 2))
        self._paused_until_s = until_s
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(pause_s + 0.001, self._announce)

    async def stop(self) -> None:
        """End the probes."""
        if self._timer is not None:
            self._timer.cancel()
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)

    async def _probe_until_back(self) -> None:
        delay_s, logged = _FIRST_PROBE_S, ""
        while why := await self._probe():
            if why != logged:
                log.warning("upstream.silent", why=why)
                logged = why
            await asyncio.sleep(delay_s * random.uniform(1.0, 1.2))  # noqa: S311 - no secret depends on it
            delay_s = min(_LONGEST_PROBE_S, 2 * delay_s)
        self._away = False
        log.info("upstream.answers")
        self._announce()

    def _announce(self) -> None:
        if self.is_open:
            self._on_open()

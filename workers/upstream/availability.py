"""Whether the upstream takes requests now: open, paused for a while, about to be probed, or away and probed.

Used by the event loop's thread only, except for `is_open` and `is_live`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

from shared.clock import Clock
from shared.log import get_logger

log = get_logger()

Probe = Callable[[], Awaitable[str]]

#: The delays between two probes of an upstream that is away, in seconds: the first, and the longest. Each is up to a
#: fifth longer at random, so that the workers of one upstream do not probe it at the same time.
_FIRST_PROBE_S, _LONGEST_PROBE_S = 0.1, 2.0
#: A worker that pauses for longer than this does not count as live, like one without heartbeats.
_LIVE_PAUSE_S = 5.0


class Availability:
    """The state of the upstream, as this worker has observed it."""

    def __init__(self, probe: Probe, on_open: Callable[[], None], clock: Clock) -> None:
        """Create the state of an upstream that nobody has reached yet.

        `probe` returns "" if the upstream answers, otherwise why it does not. `on_open` is called when the upstream
        takes requests again.
        """
        self._probe, self._on_open, self._clock = probe, on_open, clock
        self._away, self._is_doubted = True, False
        #: How often the upstream has been away.
        self.outages = 0
        self._paused_until_s = 0.0
        self._probing: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None
        #: Ends the wait between two probes.
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether jobs can be sent to the upstream now. May be called from any thread."""
        return not self._away and not self._is_doubted and self._clock.monotonic() >= self._paused_until_s

    @property
    def is_live(self) -> bool:
        """Whether the worker counts as live: the upstream answers, or will soon. May be called from any thread."""
        return not self._away and self._paused_until_s - self._clock.monotonic() <= _LIVE_PAUSE_S

    def start(self) -> None:
        """Begin to probe the upstream, which is away until it has answered for the first time."""
        self._probing = asyncio.create_task(self._probe_until_back(self._probe))

    def note_away(self, why: str, probe: Probe | None = None) -> None:
        """Record that the upstream cannot be used, and probe it until it can: with `probe` instead of the usual one."""
        if not self._away:
            log.warning("upstream.away", why=why)
            self._away = True
            self.outages += 1
            self._probing = asyncio.create_task(self._probe_until_back(probe or self._probe))

    def check(self) -> None:
        """Probe the upstream once, in the background. It is away if it does not answer."""
        if not self._away and self._checking is None:
            self._checking = asyncio.create_task(self._check(0.0))

    def doubt(self, wait_s: float) -> None:
        """Send nothing until the upstream has answered a probe, after this time."""
        if not self._away and not self._is_doubted:
            self._is_doubted = True
            if self._checking is not None:
                self._checking.cancel()
            self._checking = asyncio.create_task(self._check(wait_s))

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
        if self._timer is not None:
            self._timer.cancel()
        tasks = [task for task in (self._probing, self._checking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _check(self, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        why = await self._probe()
        self._checking, was_doubted, self._is_doubted = None, self._is_doubted, False
        if why:
            self.note_away(why)
        elif was_doubted:
            self._announce()

    async def _probe_until_back(self, probe: Probe) -> None:
        delay_s, logged = _FIRST_PROBE_S, ""
        while why := await probe():
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

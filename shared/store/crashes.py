"""Reads which workers have ended by a fault or without a farewell, which shared/lua/lib/pools/crashes.lua notes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import redis

from shared import store_clock
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import readable, store_faults

#: Workers restart again and again if this many of a pool have ended in this time after so short a life. The script
#: `overview` has the same numbers.
MANY, RECENT_MS, SHORT_LIFE_MS = 3, 600_000, 120_000
#: The reason of a worker that gave none.
SILENT = "without a farewell"


@dataclass(frozen=True)
class Crash:
    """The end of one worker."""

    worker: str
    ended_ms: int
    life_ms: int
    why: str


@dataclass(frozen=True)
class RestartLoop:
    """The workers of one pool that have ended one after the other, the last one first."""

    model: str
    crashes: list[Crash]
    now_ms: int

    @property
    def has_fault(self) -> bool:
        """Whether most of the workers have given a fault as the reason; the others may have been killed on purpose."""
        return sum(crash.why != SILENT for crash in self.crashes) >= MANY

    def sentence(self) -> str:
        lives = [crash.life_ms / 1000 for crash in self.crashes]
        last = self.crashes[0]
        return (
            f"workers of pool {self.model} restart again and again: {len(lives)} have ended in the last "
            f"{RECENT_MS // 60_000} min after {min(lives):.0f} to {max(lives):.0f} s, the last one "
            f"{(self.now_ms - last.ended_ms) / 1000:.0f} s ago ({last.why}); longer jobs cannot end (docs/runbook.md)"
        )


def crashes_of_pools(stats: Mapping[str, int]) -> dict[str, int]:
    """Return from the store's counters how many workers of each model have crashed, the most first."""
    named = {name.removeprefix("crashes|"): value for name, value in stats.items() if name.startswith("crashes|")}
    return dict(sorted(named.items(), key=lambda item: (-item[1], item[0])))


def find_restart_loops(client: redis.Redis) -> list[RestartLoop]:
    """Return the pools whose workers restart again and again. Raises StoreUnavailable."""
    with store_faults(client):
        pipe = client.pipeline(transaction=False)
        pipe.time()
        pipe.mget(keys.of_time())
        pipe.zrange(keys.models(), 0, -1)
        time, marks, models = (readable(reply) for reply in pipe.execute(raise_on_error=False))
        now_ms = store_clock.parse(time, marks).now_ms
        names = [text(raw) for raw in models or []]
        pipe = client.pipeline(transaction=False)
        for name in names:
            pipe.hgetall(keys.crashes(keys.model_slug(name)))
        noted: list[Any] = [readable(reply) or {} for reply in pipe.execute(raise_on_error=False)] if names else []
    loops = [RestartLoop(name, _recent(found, now_ms), now_ms) for name, found in zip(names, noted, strict=True)]
    return [loop for loop in loops if len(loop.crashes) >= MANY]


def _recent(noted: dict[bytes, bytes], now_ms: int) -> list[Crash]:
    """Return the recent short lives, the last one first. Entries that no script has written are left out."""
    crashes = []
    for raw_worker, value in noted.items():
        found = re.fullmatch(r"(\d{1,15}) (\d{1,15}) (.*)", text(value), re.DOTALL)
        if found and int(found[1]) >= now_ms - RECENT_MS and int(found[2]) < SHORT_LIFE_MS:
            crashes.append(Crash(text(raw_worker), int(found[1]), int(found[2]), found[3]))
    return sorted(crashes, key=lambda crash: crash.ended_ms, reverse=True)

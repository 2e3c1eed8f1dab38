"""Opens a page of the console in a browser, and checks its first paint and the CPU time of the store."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import redis

from tests.support import processes
from tests.support.chromium import Page

#: A width in CSS pixels, and whether the colour scheme is the dark one.
Screen = tuple[int, bool]
#: The most CPU time of the store for one page, and the longest time until its first paint, in seconds. A quiet machine
#: paints within a second; the bound is much longer, because tests run beside others.
_MOST_STORE_S, _MOST_PAINT_S = 0.25, 30.0
_PAINTED_MS = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"

#: Waits as long as a slow machine may need, beside a browser.
wait_for = partial(processes.wait_for, timeout_s=60)


def _store_cpu_s(client: redis.Redis) -> float:
    used: Any = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def assert_painted(page: Page, url: str, client: redis.Redis, screens: Sequence[Screen]) -> None:
    """Open a page on each of several screens. It must be painted soon, fit the screen, and cost the store little."""
    paints_ms, costs_s = [], []
    for width, dark in screens:
        page.look(width, dark=dark)
        before_s = _store_cpu_s(client)
        page.open(url)
        paints_ms.append(wait_for(lambda: page.run(_PAINTED_MS), "the first paint"))
        costs_s.append(_store_cpu_s(client) - before_s)
        assert page.width_needed() == width
    paints = ", ".join(f"{ms:.0f}" for ms in paints_ms)
    print(f"{url}: first paint after {paints} ms; the store's CPU {[round(1000 * one) for one in costs_s]} ms")
    assert min(costs_s) < _MOST_STORE_S
    assert min(paints_ms) < 1_000 * _MOST_PAINT_S

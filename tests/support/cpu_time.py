"""Limits the CPU time of a block, measured without the overhead of a tracer such as coverage's."""

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: CPU time that `_yardstick` took on the machine for which the limits in the tests are chosen.
_YARDSTICK_S = 0.02
#: How often the machine's speed is measured, after a block that took longer than its limit. The slowest time counts.
_MEASUREMENTS = 5


@contextmanager
def cpu_time_below(limit_s: float) -> Iterator[None]:
    """Assert that the block uses less CPU time than this on a machine of usual speed; a slower one gets more.

    The machine's speed is only measured if the block took longer, because a measurement takes longer than most blocks.
    The block runs without the tracer, so coverage does not see it, and without the garbage collector, which would
    examine all objects of the tests that ran before.
    """
    tracer = sys.gettrace()
    sys.settrace(None)
    gc.disable()
    began_s = time.process_time()
    try:
        yield
    finally:
        took_s = time.process_time() - began_s
        gc.enable()
        sys.settrace(tracer)
    if took_s >= limit_s:
        slowness = max(1.0, *(_yardstick() / _YARDSTICK_S for _ in range(_MEASUREMENTS)))
        assert took_s < limit_s * slowness


def _yardstick() -> float:
    """Return the CPU time in seconds of a fixed piece of Python."""
    tracer = sys.gettrace()
    sys.settrace(None)
    began_s = time.process_time()
    found: dict[int, str] = {}
    for number in range(150_000):
        found[number % 1_000] = str(number)
    took_s = time.process_time() - began_s
    sys.settrace(tracer)
    return took_s

"""Limits the CPU time of a block, measured without the overhead of a tracer such as coverage's."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cpu_time_below(limit_s: float) -> Iterator[None]:
    """Assert that the block uses less CPU time than this. It runs without the tracer, so coverage does not see it."""
    tracer = sys.gettrace()
    sys.settrace(None)
    began_s = time.process_time()
    try:
        yield
    finally:
        took_s = time.process_time() - began_s
        sys.settrace(tracer)
    assert took_s < limit_s

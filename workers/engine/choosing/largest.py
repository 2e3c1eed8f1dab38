"""Finds the largest logits of many rows: in C, in several threads, or in NumPy where no compiler was found.

Both ways return the same. The C library is built with the package (`ext-modules` in pyproject.toml); it uses nothing of
Python, and is called without the interpreter's lock.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]
Ids = np.ndarray[Any, np.dtype[np.int32]]
Addresses = np.ndarray[Any, np.dtype[np.uint64]]

#: The most numbers of a row that can be found, and the longest row.
MAX_K, MAX_ROW = 128, 1 << 22
#: The bound of the NumPy way is found in blocks of this length.
_BLOCK = 256
#: A thread gets at least this many numbers: handing it work takes about 30 µs, in which one thread reads this many.
_LEAST_WORK = 1 << 18


class Largest(NamedTuple):
    """The largest numbers of each row, largest first; of equal ones those with the smaller index come first.

    Row `r` of `ids` and `values` has `counts[r]` entries; the rest of `values` is -inf, and the rest of `ids` is 0. NaN
    and -inf are not among the entries.
    """

    ids: Ids
    values: Floats
    counts: Ids


class Finder:
    """Finds the largest numbers with at most `threads` threads; with `library` None, in NumPy."""

    def __init__(self, threads: int, library: Callable[..., None] | None) -> None:
        self._threads, self._library = threads, library
        # It starts a thread only when it gets work.
        self._pool = ThreadPoolExecutor(max(1, threads - 1), "choosing")

    def find(self, addresses: Addresses, ks: Ids, n: int) -> Largest:
        """Return the `ks[r]` largest of the `n` floats at each address. 1 <= ks[r] <= MAX_K, and n <= MAX_ROW."""
        count, width = len(addresses), int(ks.max())
        found = Largest(
            np.zeros((count, width), np.int32), np.full((count, width), -np.inf, np.float32), np.zeros(count, np.int32)
        )
        if self._library is None:
            for row in range(count):
                self._in_numpy(rows_at(int(addresses[row]), 1, n)[0], int(ks[row]), found, row)
            return found
        parts = min(self._threads, count, 1 + count * n // _LEAST_WORK)
        ends = [count * part // parts for part in range(parts + 1)]

        def find_in(begin: int, end: int, library: Callable[..., None] = self._library) -> None:
            library(
                addresses.ctypes.data + 8 * begin,
                ks.ctypes.data + 4 * begin,
                end - begin,
                n,
                width,
                found.ids.ctypes.data + 4 * width * begin,
                found.values.ctypes.data + 4 * width * begin,
                found.counts.ctypes.data + 4 * begin,
            )

        waiting = [self._pool.submit(find_in, ends[part], ends[part + 1]) for part in range(1, parts)]
        find_in(0, ends[1])
        for each in waiting:
            each.result()
        return found

    def close(self) -> None:
        self._pool.shutdown()

    @staticmethod
    def _in_numpy(row: Floats, k: int, found: Largest, at: int) -> None:
        ids = largest_in(row, k)
        found.ids[at, : len(ids)], found.values[at, : len(ids)], found.counts[at] = ids, row[ids], len(ids)


def largest_in(row: Floats, k: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return the indices of the `k` largest numbers of a row in the order of Largest, without NaN and -inf."""
    whole = len(row) // _BLOCK * _BLOCK
    maxima = np.append(np.fmax.reduce(row[:whole].reshape(-1, _BLOCK), axis=1), row[whole:])
    # With fewer maxima than k, every number is a candidate. A maximum of nothing but NaN is NaN, and counts as -inf.
    maxima = np.where(np.isnan(maxima), np.float32(-np.inf), maxima)
    bound = np.partition(maxima, len(maxima) - k)[len(maxima) - k] if k < len(maxima) else np.float32(-np.inf)
    candidates = np.flatnonzero((row >= bound) & (row > -np.inf))
    return candidates[np.argsort(-row[candidates], kind="stable")[:k]]


def rows_at(address: int, rows: int, n: int) -> Floats:
    numbers: Any = (ctypes.c_float * (rows * n)).from_address(address)
    floats: Floats = np.frombuffer(numbers, np.float32).reshape(rows, n)
    return floats


def load_library() -> Callable[..., None] | None:
    spec = PathFinder.find_spec("_largest", [str(Path(__file__).parent)])
    if spec is None or spec.origin is None:
        return None
    function: Any = ctypes.CDLL(spec.origin).penstock_largest
    pointer, number = ctypes.c_void_p, ctypes.c_int
    function.argtypes = [pointer, pointer, number, number, number, pointer, pointer, pointer]
    function.restype = None
    checked: Callable[..., None] = function
    return checked

"""The vectors of the semantic cache that a door process knows, and how similar they are to another one.

Python has no fast scalar product, and the door has no NumPy. But a product of a large number and a small one is
computed in C: the values of one dimension of all vectors stand side by side in one large number, in lanes of 32 bits,
so that 384 products and sums of such numbers give the scalar products of a vector with all others (ADR 97).
"""

import math
from collections.abc import Sequence
from operator import itemgetter, mul
from typing import NamedTuple, Protocol

#: The bytes of a scope. Only vectors with equal scopes are compared (web/semantic_cache/scope.py).
SCOPE_BYTES = 16
#: The largest value of a vector becomes this one, and the values of a vector are stored with `_MIDDLE` added.
_LARGEST, _MIDDLE = 127, 128
#: The bytes of a lane, in which a scalar product of up to 4,096 dimensions fits.
_LANE_BYTES = 4
#: Vectors with more dimensions have no semantic cache.
MAX_DIMENSIONS = 4_096
#: The most values of a block: those of 1,024 vectors of 384 dimensions. Only the last block of a table changes.
_BLOCK_VALUES = 393_216
#: The memory for the vectors of one tenant, which also bounds the time of a comparison, and for those of all tenants of
#: a process. The oldest vectors of the tenant, and the tenants that were not used for longest, make room.
_TENANT_BYTES, _MAX_BYTES = 16_777_216, 67_108_864


class Near(NamedTuple):
    """A vector of the same scope, and its cosine."""

    similarity: float
    digest: str


def packed(vector: Sequence[float]) -> bytes:
    """Return a vector as bytes with signs, scaled so that its largest value is 127."""
    largest = max(map(abs, vector), default=0.0)
    if not math.isfinite(largest) or largest == 0.0:
        return bytes(len(vector))
    factor = _LARGEST / largest
    return bytes(round(value * factor) & 0xFF for value in vector)


def _signed(vector: bytes) -> memoryview:
    return memoryview(vector).cast("b")


def _length(vector: bytes) -> float:
    return math.sqrt(sum(value * value for value in _signed(vector)))


def _rows_of_block(dimensions: int) -> int:
    return max(1, _BLOCK_VALUES // dimensions)


class Listed(Protocol):
    """A vector as the store lists it (KeptVector)."""

    @property
    def digest(self) -> str: ...
    @property
    def kept_us(self) -> int: ...
    @property
    def scope(self) -> bytes: ...
    @property
    def vector(self) -> bytes: ...


class _Block:
    """Some vectors of one length, with the columns in which they are compared."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._rows = bytearray()
        self._columns: list[int] | None = None
        self._offsets: list[int] = []
        self.digests: list[str] = []
        self.scopes: list[bytes] = []
        self.lengths: list[float] = []

    @property
    def is_full(self) -> bool:
        return len(self.digests) >= _rows_of_block(self._dimensions)

    def add(self, digest: str, scope: bytes, vector: bytes) -> None:
        # Values without signs, because columns have no place for them.
        row = bytes(value + _MIDDLE for value in _signed(vector))
        self._rows += row
        self._offsets.append(_MIDDLE * sum(row))
        self._columns = None
        self.digests.append(digest)
        self.scopes.append(scope)
        self.lengths.append(_length(vector))

    def products(self, vector: memoryview) -> list[int]:
        """Return the scalar products with the vectors of the block."""
        columns = self._columns or self._made_columns()
        # With 128 added to each value, nothing is negative, and no lane runs over into the next one.
        lanes = sum(map(mul, bytes(value + _MIDDLE for value in vector), columns))
        data = memoryview(lanes.to_bytes(_LANE_BYTES * len(self.digests), "little")).cast("I")
        surplus = _MIDDLE * sum(vector)
        return [lane - offset - surplus for lane, offset in zip(data, self._offsets, strict=True)]

    def _made_columns(self) -> list[int]:
        lanes, columns = bytearray(_LANE_BYTES * len(self.digests)), []
        for dimension in range(self._dimensions):
            lanes[::_LANE_BYTES] = self._rows[dimension :: self._dimensions]
            columns.append(int.from_bytes(lanes, "little"))
        self._columns = columns
        return columns


class _Table:
    """The vectors of a tenant."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []
        self.dimensions = 0
        #: The time of the last vector that was read from the store.
        self.last_us = 0
        #: Digests of the blocks whose answers are not in the store any more.
        self.gone: set[str] = set()

    @property
    def size(self) -> int:
        """The bytes that the columns and the rows take, as if all blocks were full."""
        return len(self.blocks) * _BLOCK_VALUES * (_LANE_BYTES + 1)

    def knows(self, digest: str) -> bool:
        return any(digest in block.digests for block in self.blocks)

    def add(self, digest: str, scope: bytes, vector: bytes) -> None:
        if self.dimensions != len(vector):
            # Another embedding model: its vectors have other lengths.
            self.blocks, self.dimensions = [], len(vector)
            self.gone.clear()
        if not self.blocks or self.blocks[-1].is_full:
            self.blocks.append(_Block(self.dimensions))
        self.gone.discard(digest)
        self.blocks[-1].add(digest, scope, vector)


class AnswerVectors:
    """The vectors of the tenants whose cache this process has used, at most about `max_entries` of each."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        #: The tenant that was used last comes last.
        self._tables: dict[str, _Table] = {}

    def last_us(self, tenant: str) -> int:
        """Return the time of the last vector of a tenant that was added; 0 without any."""
        table = self._tables.get(tenant)
        return table.last_us if table else 0

    def add_listed(self, tenant: str, after_us: int, listed: Sequence[Listed]) -> None:
        """Add the vectors that the store listed after a time, unless that is not the time of the last one any more.

        Then another request has added the same ones meanwhile, or other tenants have taken their room.
        """
        if after_us == self.last_us(tenant):
            for each in listed:
                self.add(tenant, each.digest, each.kept_us, each.scope, each.vector)

    def add(self, tenant: str, digest: str, kept_us: int, scope: bytes, vector: bytes) -> None:
        """Add a vector. The oldest ones of the tenant, and those of tenants that were not used, make room."""
        table = self._tables.setdefault(tenant, _Table())
        table.last_us = max(table.last_us, kept_us)
        if len(scope) != SCOPE_BYTES or not 0 < len(vector) <= MAX_DIMENSIONS:
            return  # another program has spoiled it
        table.add(digest, scope, vector)
        most = -(-self._max_entries // _rows_of_block(table.dimensions)) + 1
        removed = table.blocks[: -min(most, _TENANT_BYTES // (_BLOCK_VALUES * (_LANE_BYTES + 1)))]
        if removed:
            del table.blocks[: len(removed)]
            table.gone = {each for each in table.gone if table.knows(each)}
        for other in list(self._tables):
            if other != tenant and sum(each.size for each in self._tables.values()) > _MAX_BYTES:
                del self._tables[other]

    def forget(self, tenant: str, digest: str) -> None:
        """Do not return a vector again whose answer is not in the store any more."""
        table = self._tables.get(tenant)
        # Most prompts have no answer yet. Their digests would only take memory.
        if table and table.knows(digest):
            table.gone.add(digest)

    def nearest(self, tenant: str, scope: bytes, vector: bytes, least: float, most: int) -> list[Near]:
        """Return at most `most` vectors of a scope with a similarity of at least `least`, the most similar first."""
        table = self._tables.pop(tenant, None)
        if table is None:
            return []
        self._tables[tenant] = table
        length = _length(vector)
        if table.dimensions != len(vector) or not length:
            return []
        query, found = _signed(vector), dict[str, float]()
        for block in table.blocks:
            limit = least * length
            for at, (product, other) in enumerate(zip(block.products(query), block.lengths, strict=True)):
                if product >= limit * other > 0 and block.scopes[at] == scope:
                    found[block.digests[at]] = product / (length * other)
        near = [Near(min(1.0, cosine), digest) for digest, cosine in found.items() if digest not in table.gone]
        return sorted(near, key=itemgetter(0), reverse=True)[:most]

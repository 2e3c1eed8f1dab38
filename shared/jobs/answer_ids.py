"""Packs the token ids of an unfinished answer for the store, with a seal that says which worker may continue it.

An id has 4 bytes, the lowest first. The seal is made from the claim token, the fingerprint of the worker's model and
all ids so far: 16 hexadecimal digits of a SHA-1. shared/lua/lib/jobs/partial.lua checks it. It detects ids that another
program has changed and ids of another model; it does not protect against a program that makes a seal on purpose.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

_ID_BYTES, _SEAL_DIGITS = 4, 16


class PackedIds(NamedTuple):
    """Ids that are added to those in the store, and the seal of all of them. Empty if nothing is to be stored."""

    ids: bytes = b""
    seal: str = ""


#: Sent for an answer that no other worker can continue.
NOTHING = PackedIds()


class AnswerIds:
    """The ids of one answer under one claim. Each call of `add` packs the new ones."""

    def __init__(self, claim_token: str, fingerprint: str, kept: Sequence[int] = ()) -> None:
        """Create the ids of an answer that continues after the tokens `kept`, which the store has already."""
        self._prefix = f"{claim_token} {fingerprint} ".encode()
        self._begin()
        self._pack(kept)

    def add(self, tokens: Sequence[int], end: int) -> PackedIds:
        """Return the bytes to store when the answer has `end` tokens and ends with `tokens`.

        An answer may be told from its beginning again. Returns nothing to store if tokens between are missing.
        """
        start = end - len(tokens)
        if start not in {self._count, 0}:
            return NOTHING
        if start != self._count:
            self._begin()
        packed = self._pack(tokens)
        return PackedIds(packed, self._hash.hexdigest()[:_SEAL_DIGITS])

    def _begin(self) -> None:
        self._hash = hashlib.sha1(self._prefix, usedforsecurity=False)
        self._count = 0

    def _pack(self, tokens: Sequence[int]) -> bytes:
        packed = struct.pack(f"<{len(tokens)}I", *tokens)
        self._hash.update(packed)
        self._count += len(tokens)
        return packed


def unpack(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // _ID_BYTES}I", packed)

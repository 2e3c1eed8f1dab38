"""One llama_batch whose memory is made once and filled anew each step, through views."""

import ctypes
from typing import Any

import numpy as np

_Tokens = np.ndarray[Any, np.dtype[np.int32]]


class Batch:
    """Room for `capacity` tokens, each of one sequence. `lib` is llama.cpp's API.

    llama.cpp reads the sequence ids of a token through a pointer of its own; here each points at its
    place in one array, so that a prompt's ids are written at once.
    """

    def __init__(self, lib: Any, capacity: int) -> None:
        self.capacity, self.n_tokens = capacity, 0
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._n_seq = np.ones(capacity, np.int32)
        self._seq = np.zeros(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        self._counting = np.arange(capacity, dtype=np.int32)
        first = self._seq.ctypes.data
        self._seq_pointers = (first + 4 * np.arange(capacity)).astype(np.uintp)
        self._batch = lib.llama_batch(
            n_tokens=0,
            token=_pointer(self._token, ctypes.c_int32),
            embd=None,
            pos=_pointer(self._pos, ctypes.c_int32),
            n_seq_id=_pointer(self._n_seq, ctypes.c_int32),
            seq_id=_pointer(self._seq_pointers, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._wanted, ctypes.c_int8),
        )

    def clear(self) -> None:
        """Begin a step."""
        self.n_tokens = 0

    def add_token(self, token: int, pos: int, slot: int) -> int:
        """One decoding sequence's token; where its logits will be."""
        at = self.n_tokens
        self._token[at], self._pos[at], self._seq[at], self._wanted[at] = token, pos, slot, 1
        self.n_tokens = at + 1
        return at

    def add_prompt(self, tokens: _Tokens, pos: int, slot: int, *, last: bool, every: bool = False) -> int:
        """Some of a prompt; with `last`, logits for its last token, whose place is returned, with `every` for each."""
        at, end = self.n_tokens, self.n_tokens + len(tokens)
        self._token[at:end] = tokens
        self._pos[at:end] = self._counting[: len(tokens)]
        self._pos[at:end] += pos
        self._seq[at:end] = slot
        self._wanted[at:end] = every
        self._wanted[end - 1] = last
        self.n_tokens = end
        return end - 1

    def filled(self) -> Any:
        """The llama_batch to decode."""
        self._batch.n_tokens = self.n_tokens
        return self._batch


def _pointer(array: np.ndarray[Any, Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))

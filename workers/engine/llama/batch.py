"""One llama_batch, whose memory is allocated once and refilled for each step through NumPy arrays."""

import ctypes
from typing import Any

import numpy as np

_Tokens = np.ndarray[Any, np.dtype[np.int32]]


class Batch:
    """A batch of at most `capacity` tokens. Each token belongs to one sequence. `lib` is llama.cpp's API.

    llama.cpp reads the sequence ids of each token through a separate pointer. All these pointers refer to elements of
    one array, so that the sequence ids of a whole prompt can be written with a single assignment.
    """

    def __init__(self, lib: Any, capacity: int) -> None:
        self.capacity, self.n_tokens = capacity, 0
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._n_seq = np.ones(capacity, np.int32)
        self._seq = np.zeros(capacity, np.int32)
        self._logits = np.zeros(capacity, np.int8)
        self._range = np.arange(capacity, dtype=np.int32)
        first = self._seq.ctypes.data
        self._seq_pointers = (first + 4 * np.arange(capacity)).astype(np.uintp)
        self._batch = lib.llama_batch(
            n_tokens=0,
            token=_pointer(self._token, ctypes.c_int32),
            embd=None,
            pos=_pointer(self._pos, ctypes.c_int32),
            n_seq_id=_pointer(self._n_seq, ctypes.c_int32),
            seq_id=_pointer(self._seq_pointers, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._logits, ctypes.c_int8),
        )

    def clear(self) -> None:
        self.n_tokens = 0

    def add_tokens(self, tokens: list[int], positions: list[int], slots: list[int]) -> None:
        """Add one token of each of several decoding sequences, and request their logits."""
        at, end = self.n_tokens, self.n_tokens + len(tokens)
        self._token[at:end], self._pos[at:end], self._seq[at:end] = tokens, positions, slots
        self._logits[at:end] = 1
        self.n_tokens = end

    def add_prompt(self, tokens: _Tokens, pos: int, slot: int, *, last_logits: bool, all_logits: bool = False) -> int:
        """Add a chunk of a prompt, and return the index of the chunk's last token in the batch.

        `last_logits` requests the logits of the chunk's last token, and `all_logits` those of all its other tokens.
        """
        at, end = self.n_tokens, self.n_tokens + len(tokens)
        self._token[at:end] = tokens
        self._pos[at:end] = self._range[: len(tokens)]
        self._pos[at:end] += pos
        self._seq[at:end] = slot
        self._logits[at:end] = all_logits
        self._logits[end - 1] = last_logits
        self.n_tokens = end
        return end - 1

    def filled(self) -> Any:
        self._batch.n_tokens = self.n_tokens
        return self._batch


def _pointer(array: np.ndarray[Any, Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))

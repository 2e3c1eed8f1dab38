"""A device that computes behind llama.cpp's back, as a GPU does: llama_decode returns before the result is there."""

from typing import Any

import pytest
from llama_cpp import llama_cpp

from shared.clock import ManualClock

#: The time of a batch on the device: a constant, and a time for each of its tokens.
BATCH_S, TOKEN_S = 0.004, 0.0004


class DeviceQueue:
    """Replaces functions of llama.cpp's API, so that a batch takes time on the clock only when somebody waits for it.

    The batches are really computed, at once. Only their time is simulated. As in llama.cpp, the functions that return
    logits wait for the device, and so does llama_synchronize.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
        self._clock, self._done_s = clock, clock.monotonic()
        #: Time that the device has computed so far.
        self.busy_s = 0.0
        self._decode = llama_cpp.llama_decode
        monkeypatch.setattr(llama_cpp, "llama_decode", self._enqueue)
        for name in ("llama_get_logits_ith", "llama_sampler_sample", "llama_synchronize", "llama_get_embeddings_seq"):
            monkeypatch.setattr(llama_cpp, name, self._waiting(getattr(llama_cpp, name)))

    def _enqueue(self, ctx: Any, batch: Any) -> int:
        code: int = self._decode(ctx, batch)
        took_s = BATCH_S + TOKEN_S * batch.n_tokens
        self.busy_s += took_s
        self._done_s = max(self._done_s, self._clock.monotonic()) + took_s
        return code

    def _waiting(self, function: Any) -> Any:
        def wait(*args: Any) -> Any:
            self._clock.advance(max(0.0, self._done_s - self._clock.monotonic()))
            return function(*args)

        return wait

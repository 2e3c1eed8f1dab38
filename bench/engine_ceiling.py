"""(a) The ceiling: llama_decode alone, with the engine's context, threads and batch shapes, but without its loop."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.engine_models import Load
from shared.settings.settings import Settings

# libgomp reads this when it is loaded; the workers set it too.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from llama_cpp import llama_cpp as lib

from workers.engine.llama.backend import LlamaBackend, load_backend
from workers.engine.llama.batch import Batch

__all__ = ["Ceiling", "lib"]


class Ceiling:
    """A model and a context created by the engine's own code; only time inside llama_decode is counted.

    The run computes the prompts of all clients first, with as many tokens per step as the engine takes. Then all
    sequences decode together to their end, and the next wave begins. No slot is ever empty. Nothing is sampled.
    """

    def __init__(self, settings: Settings, path: Path) -> None:
        backend = load_backend(settings, path)
        if not isinstance(backend, LlamaBackend):
            raise TypeError(f"{path.name} generates no text")
        self._backend = backend
        self.facts = self._backend.facts
        self._ctx: Any = self._backend._ctx  # noqa: SLF001 - the ceiling uses the context below the engine
        self._memory = lib.llama_get_memory(self._ctx)
        self._batch = Batch(lib, lib.llama_n_batch(self._ctx))
        self._chunk = self.facts.prefill_chunk

    def count(self, text: str) -> int:
        """Return the number of tokens of a prompt, including the BOS token."""
        return len(self._backend.tokenize(text)) + 1

    def run(self, load: Load) -> float:
        """Run the load and return the seconds spent inside llama_decode."""
        return sum(self._wave(load) for _ in range(load.answers_per_client))

    def first_token(self, prompt_tokens: int) -> float:
        """Return the seconds of one prompt and one decoding step: a lower bound for a first token and the next."""
        return self._wave(Load(1, prompt_tokens, 2, 1))

    def _wave(self, load: Load) -> float:
        lib.llama_memory_clear(self._memory, False)  # noqa: FBT003 - C
        took = 0.0
        tokens = np.arange(load.prompt_tokens, dtype=np.int32) * 7 % self._backend.n_vocab
        room = self._chunk
        self._batch.clear()
        for slot in range(load.clients):
            start = 0
            while start < load.prompt_tokens:
                n = min(room, load.prompt_tokens - start)
                last = start + n == load.prompt_tokens
                self._batch.add_prompt(tokens[start : start + n], start, slot, last_logits=last)
                start, room = start + n, room - n
                if room == 0 or (last and slot == load.clients - 1):
                    took += self._decode()
                    room = self._chunk
        for step in range(load.answer_tokens - 1):
            slots = list(range(load.clients))
            token, position = step % self._backend.n_vocab, load.prompt_tokens + step
            self._batch.add_tokens([token] * load.clients, [position] * load.clients, slots)
            took += self._decode()
        return took

    def _decode(self) -> float:
        batch = self._batch.filled()
        began = time.perf_counter()
        code = lib.llama_decode(self._ctx, batch)
        lib.llama_synchronize(self._ctx)
        took = time.perf_counter() - began
        self._batch.clear()
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        return took

    def close(self) -> None:
        """Free the model and its context."""
        self._backend.close()

"""(a) The ceiling: llama_decode alone, with the engine's context, threads and batch shapes, and nothing around it."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.engine_models import Load
from shared.settings.settings import Settings

# Read when libgomp is loaded; the workers do the same.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from llama_cpp import llama_cpp as lib

from workers.engine.llama.backend import LlamaBackend, load_backend
from workers.engine.llama.batch import Batch


class Ceiling:
    """A model and a context made by the engine's own code; only time inside llama_decode is counted.

    All clients' prompts are computed first, as many tokens a step as the engine takes, then all
    sequences go on together to their end, and so on: no slot is ever empty. Nothing is sampled.
    """

    def __init__(self, settings: Settings, path: Path) -> None:
        self._backend: LlamaBackend = load_backend(settings, path)
        self.facts = self._backend.facts
        self._ctx: Any = self._backend._ctx  # noqa: SLF001 - what is measured is what lies under the engine
        self._memory = lib.llama_get_memory(self._ctx)
        self._batch = Batch(lib, lib.llama_n_batch(self._ctx))
        self._chunk = settings.prefill_chunk

    def count(self, text: str) -> int:
        """Tokens of a prompt, the beginning token included."""
        return len(self._backend.tokenize(text)) + 1

    def run(self, load: Load) -> float:
        """Seconds inside llama_decode for the whole load."""
        return sum(self._wave(load) for _ in range(load.turns))

    def first_token(self, prompt_tokens: int) -> float:
        """Seconds of one prompt and one step: the least that any first token takes, and the next."""
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
                self._batch.add_prompt(tokens[start : start + n], start, slot, last=last)
                start, room = start + n, room - n
                if room == 0 or (last and slot == load.clients - 1):
                    took += self._decode()
                    room = self._chunk
        for step in range(load.answer_tokens - 1):
            for slot in range(load.clients):
                self._batch.add_token(step % self._backend.n_vocab, load.prompt_tokens + step, slot)
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
            raise RuntimeError(f"llama_decode answered {code}")
        return took

    def close(self) -> None:
        """Free the model."""
        self._backend.close()

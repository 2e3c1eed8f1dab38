"""The backend of a model that makes embeddings: each input whole in one step, pooled by llama.cpp, normalised here.

A job is a list of inputs. A step takes inputs of all jobs, the next one of each first, as many as its
batch holds; a job ends with its last one. No input leaves anything in the model once its step is over.
"""

import base64
import ctypes
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shared.clock import Clock
from shared.jobs.outcomes import EndCode
from workers.engine.backend import END, BatchRow, DecodeFailed, Facts, Prepared
from workers.engine.events import JobRejected, JobSpec
from workers.engine.llama.batch import Batch
from workers.engine.llama.load import EMBEDDING_SEQUENCES, Libraries
from workers.engine.llama.vocabulary import Tokens, Vocabulary
from workers.engine.sampling import Sampling
from workers.engine.slots import SlotAccountingError

#: Most tokens of one job's inputs together: a request body of a MiB holds fewer.
MOST_TOKENS = 1 << 20
#: Tokens of the practice input.
_PRACTICE = 128


@dataclass
class _Open:
    """A job that holds a slot: its inputs, and the vectors of those that are done."""

    inputs: tuple[Tokens, ...]
    vectors: list[np.ndarray[Any, np.dtype[np.float32]]] = field(default_factory=list)


class EmbeddingBackend:
    """One model and its context, made by `new_embedding_context`; both are freed by `close`."""

    lockstep = reuses = compact = False

    def __init__(self, libs: Libraries, model: int, ctx: int, facts: Facts) -> None:
        self._libs, self._model, self._ctx = libs, model, ctx
        self.slots, self._longest = facts.slots, facts.n_ctx
        # Nothing is kept from step to step, so these bound only how much work one job may be.
        self.n_ctx, self.cells = MOST_TOKENS, facts.slots * MOST_TOKENS
        lib = libs.lib
        self._vocab = Vocabulary(lib, model)
        self._memory = lib.llama_get_memory(ctx)
        self._width: int = lib.llama_model_n_embd_out(model)
        self.facts = replace(facts, width=self._width)
        self._batch = Batch(lib, lib.llama_n_batch(ctx))
        self._open: dict[int, _Open] = {}

    # Any thread.

    def prepare(self, spec: JobSpec) -> Prepared:
        """Tokenize and validate; callable by any thread. Raises JobRejected."""
        inputs = spec.payload.get("input")
        if not isinstance(inputs, list) or not inputs:
            message = "this model makes embeddings, and a job for it needs a list of inputs"
            raise JobRejected(EndCode.INVALID_VALUE, message, "input")
        tokens = tuple(self._tokens(given, f"input[{i}]") for i, given in enumerate(inputs))
        return Prepared(spec, sum(map(len, tokens)), spec.max_tokens, Sampling(), tokens)

    def _tokens(self, given: object, where: str) -> Tokens:
        if isinstance(given, str):
            # What cannot fit, however it is cut into tokens, is not cut, which might take minutes.
            self._refuse_too_long(self._vocab.fewest_tokens(given), where, "at least ")
            tokens = self._vocab.tokenize(given, around=True, control=False, param=where)
        elif isinstance(given, list) and all(isinstance(token, int) for token in given):
            strange = [token for token in given if not 0 <= token < self._vocab.size]
            if strange:
                message = f"{where} names token {strange[0]}, and the model has {self._vocab.size}"
                raise JobRejected(EndCode.INVALID_VALUE, message, "input")
            tokens = np.array(given, np.int32)
        else:
            raise JobRejected(EndCode.INVALID_VALUE, f"{where} is neither a text nor a list of token ids", "input")
        if not len(tokens):
            raise JobRejected(EndCode.INVALID_VALUE, f"{where} is empty", "input")
        self._refuse_too_long(len(tokens), where)
        return tokens

    def _refuse_too_long(self, tokens: int, where: str, about: str = "") -> None:
        if tokens > self._longest:
            message = f"{where} has {about}{tokens} tokens, and the model takes {self._longest}"
            raise JobRejected(EndCode.CONTEXT_LENGTH_EXCEEDED, message, "input")

    # The engine's thread only.

    def open(self, slot: int, job: Prepared) -> None:
        """Make `slot` ready for the job."""
        self._open[slot] = _Open(job.prompt)

    def begin(self, slot: int, source: int, n: int) -> None:
        """Every input is computed whole."""

    def decode(self, rows: list[BatchRow]) -> list[BatchRow]:
        """One llama_decode over the next inputs of the rows; those that got a place. Raises DecodeFailed."""
        chosen = self._choose(rows)
        lib, batch = self._libs.lib, self._batch
        batch.clear()
        for sequence, (row, at) in enumerate(chosen):
            batch.add_prompt(self._open[row.slot].inputs[at], 0, sequence, last=True, every=True)
        code = lib.llama_decode(self._ctx, batch.filled())
        if code != 0:
            self._forget_all()
            raise DecodeFailed(f"llama_decode answered {code} to {batch.n_tokens} tokens: {self._libs.log.errors()}")
        done: dict[int, BatchRow] = {}
        for sequence, (row, at) in enumerate(chosen):
            job = self._open[row.slot]
            job.vectors.append(self._vector(sequence))
            if row.slot not in done:
                done[row.slot], row.n = row, 0
            row.n += len(job.inputs[at])
            row.samples = len(job.vectors) == len(job.inputs)
        self._forget_all()
        return list(done.values())

    def _choose(self, rows: list[BatchRow]) -> list[tuple[BatchRow, int]]:
        """Inputs for one step, by row and number: the next one of each row first, then more of the first rows."""
        chosen: list[tuple[BatchRow, int]] = []
        room = self._batch.capacity
        ahead = {row.slot: len(self._open[row.slot].vectors) for row in rows}
        waiting = list(rows)
        while waiting and len(chosen) < EMBEDDING_SEQUENCES:
            row = waiting.pop(0)
            inputs, at = self._open[row.slot].inputs, ahead[row.slot]
            if at == len(inputs) or len(inputs[at]) > room:
                continue
            chosen.append((row, at))
            room -= len(inputs[at])
            ahead[row.slot] = at + 1
            waiting.append(row)
        return chosen

    def _vector(self, sequence: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        pointer = self._libs.lib.llama_get_embeddings_seq(self._ctx, sequence)
        row: Any = (ctypes.c_float * self._width).from_address(ctypes.addressof(pointer.contents))
        vector = np.frombuffer(row, np.float32).astype(np.float64)
        return (vector / (np.linalg.norm(vector) or 1.0)).astype(np.float32)

    def sample(self, row: BatchRow) -> int:
        """END: an embedding is no text. Raises ValueError for one that is no number."""
        if not all(np.isfinite(vector).all() for vector in self._open[row.slot].vectors):
            raise ValueError("the model's embedding is not a number")
        return END

    def piece(self, token: int) -> bytes:  # noqa: ARG002 - the Protocol's name
        """Nothing: no token is generated."""
        return b""

    def more(self, slot: int, text: str) -> dict[str, Any]:  # noqa: ARG002 - the Protocol's name
        """The vectors, once all are there: each as base64 of its float32 numbers, little-endian."""
        job = self._open.get(slot)
        if job is None or len(job.vectors) < len(job.inputs):
            return {}
        return {"embeddings": [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in job.vectors]}

    def close_slot(self, slot: int) -> None:
        """The job has ended."""
        self._open.pop(slot, None)

    def forget(self, slot: int) -> None:
        """A slot holds nothing between steps."""

    def check_idle(self, kept: dict[int, int]) -> None:
        """Raise SlotAccountingError if a job is left."""
        if self._open or kept:
            raise SlotAccountingError(f"slots {sorted(self._open)} are closed and still have inputs; {kept} are kept")

    def close(self) -> None:
        """Free the context and the model; the backend cannot be used any more."""
        self._libs.lib.llama_free(self._ctx)
        self._libs.lib.llama_model_free(self._model)

    def measured(self, clock: Clock, generated_weight: int) -> Facts:
        """The facts with the rate of a practice input.

        In the books of jobs a generated token, which is never made here, takes as long as it weighs, so that
        a job's cost and time go together.
        """
        practice = np.arange(min(_PRACTICE, self._longest), dtype=np.int32) * 7 % self._vocab.size
        seconds = []
        for _ in range(2):
            self._open[0] = _Open((practice,))
            began = clock.monotonic()
            self.decode([BatchRow(0, 0, len(practice), -1, samples=True)])
            seconds.append(max(clock.monotonic() - began, 1e-9))
            self.close_slot(0)
        tps = len(practice) / min(seconds)
        token_ms = 1000 * generated_weight / tps
        decode_tps, step_ms = round(1000 / token_ms, 1), round(token_ms, 3)
        return replace(self.facts, prefill_tps=round(tps, 1), decode_tps=decode_tps, step_ms=step_ms)

    def _forget_all(self) -> None:
        if self._memory:
            self._libs.lib.llama_memory_clear(self._memory, False)  # noqa: FBT003 - C

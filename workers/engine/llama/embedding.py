"""The backend for models that embed or rank texts. Each input is computed in a single step.

A job for embeddings is a list of texts, and each result is a vector, normalized to length 1. A job for ranking is a
query and a list of documents: each input is the query with one of them, and each result is a score from 0 to 1.
 A step computes as many inputs as fit into the batch: first the next input of every job, then
further inputs. llama.cpp pools each input's tokens into one vector. A job ends when its last input is computed. After
the step, the model keeps no state of the inputs.
"""

import base64
import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shared.clock import Clock
from shared.jobs.outcomes import EndCode
from workers.engine.backend import END, Backend, BatchRow, DecodeFailed, Facts, Prepared, context_limit
from workers.engine.events import JobRejected, JobSpec
from workers.engine.llama.batch import Batch
from workers.engine.llama.load import EMBEDDING_SEQUENCES, Libraries
from workers.engine.llama.prompt_fit import published_weights
from workers.engine.llama.vocabulary import PairFormat, Tokens, Vocabulary
from workers.engine.sampling import Sampling
from workers.engine.slot_cells import SlotAccountingError

#: Maximum number of tokens that the inputs of one job may have together. A request body of one MiB, which is
#: the default maximum, contains fewer tokens.
MAX_JOB_TOKENS = 1 << 20
#: Number of tokens in the input with which the speed is measured.
_CALIBRATION_TOKENS = 128


_Floats = np.ndarray[Any, np.dtype[np.float32]]


@dataclass
class _OpenJob:
    """A job that holds a slot: its inputs, and the results of the inputs that were computed so far."""

    inputs: tuple[Tokens, ...]
    #: Number of dimensions to which the vectors are cut; None if they are not.
    dimensions: int | None = None
    vectors: list[_Floats] = field(default_factory=list)


class EmbeddingBackend(Backend):
    """An embedding model and its context, which `new_embedding_context` created. `close` frees both."""

    lockstep = reuses = rewinds = compact = computes_apart = False

    def __init__(self, libs: Libraries, model: int, ctx: int, facts: Facts) -> None:
        self._libs, self._model, self._ctx = libs, model, ctx
        self.slots, self.sequences, self._longest = facts.slots, facts.slots, facts.n_ctx
        # No cells are kept between steps, so these numbers only limit how many tokens a job may have.
        self.n_ctx, self.cells = MAX_JOB_TOKENS, facts.slots * MAX_JOB_TOKENS
        lib = libs.lib
        self._vocab = Vocabulary(lib, model)
        self._memory = lib.llama_get_memory(ctx)
        self._width: int = lib.llama_model_n_embd_out(model)
        weights = published_weights(lambda text: len(self._vocab.tokenize(text, parse_special=False)), None)
        self.facts = replace(facts, width=self._width, prompt_weights=weights)
        self._batch = Batch(lib, lib.llama_n_batch(ctx))
        self._open: dict[int, _OpenJob] = {}

    # The following methods may be called from any thread.

    def prepare(self, spec: JobSpec) -> Prepared:
        tokens = self._inputs(spec.payload)
        return Prepared(spec, sum(map(len, tokens)), spec.max_tokens, Sampling(), tokens)

    def _inputs(self, payload: dict[str, Any]) -> tuple[Tokens, ...]:
        """Return the tokens of each input. Raises JobRejected."""
        inputs, dimensions = payload.get("input"), payload.get("dimensions")
        if not isinstance(inputs, list) or not inputs or "query" in payload:
            message = "this model makes embeddings, so a job for it needs a list of inputs"
            raise JobRejected(EndCode.INVALID_VALUE, message, "input")
        if dimensions is not None and not (type(dimensions) is int and 1 <= dimensions <= self._width):
            message = f"dimensions={dimensions!r} is not a number from 1 to {self._width}, the model's own dimensions"
            raise JobRejected(EndCode.UNSUPPORTED_PARAMETER, message, "dimensions")
        return tuple(self._tokens(given, f"input[{i}]") for i, given in enumerate(inputs))

    def _tokens(self, given: object, where: str) -> Tokens:
        if isinstance(given, str):
            # Reject an input that is certainly too long without tokenizing it, because that might take minutes.
            self._reject_too_long(self._vocab.min_tokens(given), where, "at least ")
            tokens = self._vocab.tokenize(given, add_special=True, parse_special=False, param=where)
        elif isinstance(given, list) and all(isinstance(token, int) for token in given):
            unknown = [token for token in given if not 0 <= token < self._vocab.size]
            if unknown:
                message = f"{where} contains token {unknown[0]}, but the model has only {self._vocab.size} tokens"
                raise JobRejected(EndCode.INVALID_VALUE, message, "input")
            tokens = np.array(given, np.int32)
        else:
            raise JobRejected(EndCode.INVALID_VALUE, f"{where} is neither a text nor a list of token ids", "input")
        if not len(tokens):
            raise JobRejected(EndCode.INVALID_VALUE, f"{where} is empty", "input")
        self._reject_too_long(len(tokens), where)
        return tokens

    def _reject_too_long(self, tokens: int, where: str, qualifier: str = "") -> None:
        if tokens > self._longest:
            message = f"{context_limit(self._longest)}, and {where} has {qualifier}{tokens} tokens"
            param = "input" if where.startswith("input") else "documents"
            raise JobRejected(EndCode.CONTEXT_LENGTH_EXCEEDED, message, param)

    # The following methods are called by the engine's thread only.

    def open_slot(self, slot: int, job: Prepared, answer: Sequence[int] = (), saved: Any = None) -> None:  # noqa: ARG002 - the Protocol
        self._open[slot] = _OpenJob(job.prompt, job.spec.payload.get("dimensions"))

    def decode(self, rows: list[BatchRow], meanwhile: Callable[[], None] | None = None) -> list[BatchRow]:  # noqa: ARG002 - the Protocol
        """Compute as many of the rows' next inputs as fit into one llama_decode. Raises DecodeFailed.

        Return the rows of the jobs for which at least one input was computed.
        """
        chosen = self._choose(rows)
        lib, batch = self._libs.lib, self._batch
        batch.clear()
        for sequence, (row, at) in enumerate(chosen):
            batch.add_prompt(self._open[row.slot].inputs[at], 0, sequence, last_logits=True, all_logits=True)
        code = lib.llama_decode(self._ctx, batch.filled())
        if code != 0:
            self._clear_memory()
            raise DecodeFailed(f"llama_decode returned {code} for {batch.n_tokens} tokens: {self._libs.log.errors()}")
        done: dict[int, BatchRow] = {}
        for sequence, (row, at) in enumerate(chosen):
            job = self._open[row.slot]
            job.vectors.append(self._result(sequence, job.dimensions))
            if row.slot not in done:
                done[row.slot], row.n = row, 0
            row.n += len(job.inputs[at])
            row.samples = len(job.vectors) == len(job.inputs)
        self._clear_memory()
        return list(done.values())

    def _choose(self, rows: list[BatchRow]) -> list[tuple[BatchRow, int]]:
        """Choose the inputs of a step, taking the rows in turn while inputs fit. Return (row, input index) for each."""
        chosen: list[tuple[BatchRow, int]] = []
        tokens_left = self._batch.capacity
        next_index = {row.slot: len(self._open[row.slot].vectors) for row in rows}
        waiting = list(rows)
        while waiting and len(chosen) < EMBEDDING_SEQUENCES:
            row = waiting.pop(0)
            inputs, at = self._open[row.slot].inputs, next_index[row.slot]
            if at == len(inputs) or len(inputs[at]) > tokens_left:
                continue
            chosen.append((row, at))
            tokens_left -= len(inputs[at])
            next_index[row.slot] = at + 1
            waiting.append(row)
        return chosen

    def _result(self, sequence: int, dimensions: int | None) -> _Floats:
        """Return the vector of an input: the first `dimensions` of its numbers, normalized to length 1."""
        vector = self._pooled(sequence, dimensions or self._width)
        return (vector / (np.linalg.norm(vector) or 1.0)).astype(np.float32)

    def _pooled(self, sequence: int, n: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the first `n` numbers that llama.cpp has pooled from the tokens of a sequence of the batch."""
        pointer = self._libs.lib.llama_get_embeddings_seq(self._ctx, sequence)
        row: Any = (ctypes.c_float * n).from_address(ctypes.addressof(pointer.contents))
        return np.frombuffer(row, np.float32).astype(np.float64)

    def sample(self, row: BatchRow, known: int | None = None) -> int:  # noqa: ARG002 - the Protocol's name
        """Return END, because a result has no text. Raises ValueError if a result contains NaN or infinity."""
        if not all(np.isfinite(vector).all() for vector in self._open[row.slot].vectors):
            raise ValueError("the model's result contains a value that is not a finite number")
        return END

    def extra_fields(self, slot: int, text: str) -> dict[str, Any]:  # noqa: ARG002 - the Protocol's name
        """Return the field `embeddings`, or no fields before all inputs are computed.

        Each embedding is base64 text of little-endian float32 numbers.
        """
        job = self._open.get(slot)
        if job is None or len(job.vectors) < len(job.inputs):
            return {}
        return {"embeddings": [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in job.vectors]}

    def close_slot(self, slot: int) -> None:
        self._open.pop(slot, None)

    def check_idle(self, kept: dict[int, int]) -> None:
        """Raise SlotAccountingError if a slot still has a job, or if `kept` is not empty: slots keep no cells."""
        if self._open or kept:
            raise SlotAccountingError(f"slots {sorted(self._open)} are closed and still have inputs; {kept} are kept")

    def close(self) -> None:
        """Free the context and the model. The backend cannot be used afterwards."""
        self._libs.lib.llama_free(self._ctx)
        self._libs.lib.llama_model_free(self._model)

    def calibrated_facts(self, clock: Clock, generated_weight: int) -> Facts:
        """Return the facts with measured rates.

        Embedding jobs generate no tokens, but predictions need a decode rate. It is computed as if a generated
        token took `generated_weight` times as long as a prompt token. A job's predicted time is then proportional to
        its cost.
        """
        sample = np.arange(min(_CALIBRATION_TOKENS, self._longest), dtype=np.int32) * 7 % self._vocab.size
        seconds = []
        for _ in range(2):
            self._open[0] = _OpenJob((sample,))
            began_s = clock.monotonic()
            self.decode([BatchRow(0, 0, len(sample), -1, samples=True)])
            seconds.append(max(clock.monotonic() - began_s, 1e-9))
            self.close_slot(0)
        tps = len(sample) / min(seconds)
        token_ms = 1000 * generated_weight / tps
        decode_tps, step_ms = round(1000 / token_ms, 1), round(token_ms, 3)
        return replace(self.facts, prefill_tps=round(tps, 1), decode_tps=decode_tps, step_ms=step_ms)

    def _clear_memory(self) -> None:
        if self._memory:
            self._libs.lib.llama_memory_clear(self._memory, False)  # noqa: FBT003 - a C function takes no keywords


#: A document that may be cut is first cut to this many characters for each token of the context, because the time to
#: tokenize a text grows with its length. Texts of longer tokens are seldom, and are then cut more than they had to be.
_CHARS_PER_TOKEN = 32


class RankingBackend(EmbeddingBackend):
    """A model that says how well documents answer a query. A job for it has a `query`, and documents as its inputs."""

    def __init__(self, libs: Libraries, model: int, ctx: int, facts: Facts) -> None:
        super().__init__(libs, model, ctx, facts)
        template = libs.lib.llama_model_chat_template(model, b"rerank") or b""
        self._format = PairFormat(self._vocab, template.decode("utf-8", "replace"))
        self.facts = replace(facts, width=1)
        #: Whether llama.cpp returns a single number, any real one. Otherwise it returns the probabilities of labels;
        #: the first label says that the document answers the query.
        self._single: bool = libs.lib.llama_model_n_cls_out(model) == 1

    def _inputs(self, payload: dict[str, Any]) -> tuple[Tokens, ...]:
        query, documents = payload.get("query"), payload.get("input")
        if not isinstance(query, str) or not isinstance(documents, list) or not documents:
            message = "this model ranks documents, so a job for it needs a query and documents: use /v1/rerank"
            raise JobRejected(EndCode.INVALID_VALUE, message, "query")
        asked = self._vocab.min_tokens(query)
        self._reject_too_long(asked, "the query", "at least ")
        cuts = payload.get("truncate") is True
        for i, document in enumerate(documents):
            if not isinstance(document, str) or not document:
                raise JobRejected(EndCode.INVALID_VALUE, f"documents[{i}] is not a text", "documents")
            if cuts:
                continue
            least = asked + self._vocab.min_tokens(document)
            self._reject_too_long(least, f"the query with documents[{i}]", "at least ")
        pairs: list[Tokens] = []
        total = 0
        whole = self._format.pairs(query, documents)
        for i, tokens in enumerate((self._cut_pair(query, document) for document in documents) if cuts else whole):
            self._reject_too_long(len(tokens), f"the query with documents[{i}]")
            pairs.append(tokens)
            total += len(tokens)
            if total > MAX_JOB_TOKENS:
                message = f"the query with each of {len(documents)} documents has more than {MAX_JOB_TOKENS} tokens"
                raise JobRejected(EndCode.CONTEXT_LENGTH_EXCEEDED, message, "documents")
        return tuple(pairs)

    def _cut_pair(self, query: str, document: str) -> Tokens:
        """Return the tokens of the query with as much of the document's beginning as fits into the context.

        If the query alone does not fit, they are too many.
        """
        kept = document[: _CHARS_PER_TOKEN * self._longest]
        while kept and self._vocab.min_tokens(kept) > self._longest:
            kept = kept[: len(kept) // 2]
        while True:
            (tokens,) = self._format.pairs(query, [kept])
            excess = len(tokens) - self._longest
            if excess <= 0 or not kept:
                return tokens
            own = max(1, len(self._vocab.tokenize(kept, parse_special=False, param="documents")))
            kept = kept[: len(kept) * max(0, own - excess) // own]

    def _result(self, sequence: int, dimensions: int | None) -> _Floats:  # noqa: ARG002 - no vector, no dimensions
        """Return the score of an input, from 0 to 1, as the only number of an array."""
        score = self._pooled(sequence, 1)
        return (0.5 + 0.5 * np.tanh(score / 2) if self._single else score).astype(np.float32)

    def extra_fields(self, slot: int, text: str) -> dict[str, Any]:  # noqa: ARG002 - the Protocol's name
        """Return the field `scores`, a number for each document, or no fields before all are computed."""
        job = self._open.get(slot)
        if job is None or len(job.vectors) < len(job.inputs):
            return {}
        return {"scores": [round(float(score[0]), 6) for score in job.vectors]}

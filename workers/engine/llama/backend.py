"""The backend on llama-cpp-python's low-level API. In the worker, no other file imports llama_cpp.

All sequences share one context. `decode` calls `llama_decode` once, with a batch whose memory is allocated only once.
Logits are computed only for rows that are sampled. The tokens of all rows of a step are chosen together.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import _ggml, llama_cpp

from shared.jobs.adapter_list import Adapter
from shared.jobs.outcomes import EndCode
from shared.settings.worker import WorkerSettings
from workers.engine.answer.words import is_end, token_of
from workers.engine.backend import END, Backend, BatchRow, DecodeFailed, Facts, Prepared
from workers.engine.chat.answer_form import Form
from workers.engine.chat.tool_grammar import tool_constraint
from workers.engine.chat.tool_request import ToolRequest, read_tools
from workers.engine.choosing.chooser import Chooser, NothingToChoose, Row
from workers.engine.choosing.largest import Finder, load_library, rows_at
from workers.engine.choosing.sampler import Sampler
from workers.engine.events import JobRejected, JobSpec
from workers.engine.llama.adapters import Adapters
from workers.engine.llama.batch import Batch
from workers.engine.llama.devices import Device, gpus
from workers.engine.llama.embedding import EmbeddingBackend, RankingBackend
from workers.engine.llama.load import RANK, Libraries, ModelShape, has_recurrent_memory
from workers.engine.llama.log import LlamaLog
from workers.engine.llama.logprobs import Logprobs
from workers.engine.llama.prompt import Prompts
from workers.engine.llama.start import open_model
from workers.engine.llama.vocabulary import Tokens, Vocabulary
from workers.engine.sampling import Sampling, read_candidates, read_sampling
from workers.engine.sizing import choosing_threads_of
from workers.engine.slot_cells import SlotAccountingError
from workers.engine.structured.compiler import GrammarCompiler, SchemaLimits
from workers.engine.structured.constraint import Constraint, read_constraint

_LOG = LlamaLog()


def _log_line(level: int, text: bytes, _: object) -> None:
    _LOG.add_line(level, text.decode("utf-8", "replace"))


#: Replaces llama.cpp's default log callback, which writes to stderr. The callback is stored in a module-level variable,
#: because it must not be garbage-collected while the library can call it.
_LOG_CALLBACK = llama_cpp.llama_log_callback(_log_line)
llama_cpp.llama_log_set(_LOG_CALLBACK, None)


class LlamaBackend(Backend):
    """A text generation model, and the context that all slots share. `close` frees `model` and `ctx`."""

    lockstep = True

    def __init__(
        self,
        model: int,
        ctx: int,
        shape: ModelShape,
        facts: Facts,
        limits: SchemaLimits,
        adapters: Adapters,
        *,
        template_cpu_ms: int,
        choosing_threads: int,
        explains_tools: bool = True,
    ) -> None:
        sizes = shape.sizes
        self.slots, self.cells, self.n_ctx = sizes.slots, sizes.cells, sizes.n_ctx
        self.sequences = int(llama_cpp.llama_n_seq_max(ctx))
        self._model, self._ctx = model, ctx
        self._adapters, self.adapters = adapters, adapters.names
        # Prefixes can be reused only with a full KV cache. Recurrent memory keeps only the latest state of a sequence,
        # and a sliding window keeps only its last tokens.
        recurrent = has_recurrent_memory(llama_cpp, model)
        self.reuses = not recurrent and llama_cpp.llama_model_n_swa(model) == 0
        self.rewinds = self.reuses
        self.compact = not shape.shared
        self.computes_apart = facts.layers_offloaded > 0
        self._memory = llama_cpp.llama_get_memory(ctx)
        self._vocab = Vocabulary(llama_cpp, model)
        self.n_vocab, self.tokenize = self._vocab.size, self._vocab.tokenize
        self.piece = self._vocab.piece  # type: ignore[method-assign]  # a call less for each token
        self._prompt_maker = Prompts(llama_cpp, model, self._vocab, self.n_ctx, template_cpu_ms=template_cpu_ms)
        template = self._prompt_maker.template
        #: Why the model cannot call tools; "" if it can. With `explains_tools`, those of a request are explained to a
        #: model whose template knows none.
        self._no_tools_reason = "" if template is not None else "tools need a chat template"
        if template is not None and not template.traits.shows_tools and not explains_tools:
            self._no_tools_reason = "the model's chat template shows no tools (PENSTOCK_TOOLS_WITHOUT_TEMPLATE=refuse)"
        self.facts = replace(facts, calls_tools=not self._no_tools_reason, prompt_weights=self._prompt_maker.weights())
        self._grammars = GrammarCompiler(self._vocab.table(), limits)
        self._batch = Batch(llama_cpp, llama_cpp.llama_n_batch(ctx))
        self._chooser = Chooser(Finder(choosing_threads, load_library()))
        #: The rows of the last step in their order in the batch, and what was chosen from them, by `BatchRow.index`.
        self._step: list[BatchRow] = []
        self._chosen: dict[int, int | NothingToChoose] | None = None
        #: The logits of the last step: a row for each output, in the order of the batch.
        self._logits = np.empty((0, self.n_vocab), np.float32)
        self._prompts: dict[int, Tokens] = {}
        self._samplers: dict[int, Sampler] = {}
        #: Slot → the logprobs of its job, for jobs that requested them.
        self._logprobs: dict[int, Logprobs] = {}
        #: Slots in use whose memory could not be restored after a failed step.
        self._damaged: set[int] = set()

    # The following methods may be called from any thread, because the vocabulary is read-only.

    def prepare(self, spec: JobSpec) -> Prepared:
        many = read_candidates(spec.payload) > 1
        self._vocab.check(token_of(word) if many else word for word in spec.answer if not (many and is_end(word)))
        sampling = read_sampling(spec.payload)
        self._vocab.reject_unknown((token for token, _ in sampling.logit_bias), "logit_bias")
        self._vocab.reject_unknown(sampling.stop_token_ids, "stop_token_ids")
        tools = read_tools(spec.payload)
        if tools is not None and self._no_tools_reason:
            raise JobRejected(EndCode.UNSUPPORTED_PARAMETER, self._no_tools_reason, "tools")
        limits = self._grammars.limits
        constraint = read_constraint(spec.payload, max_bytes=limits.max_bytes, ignores_formats=limits.ignores_formats)
        prompts, rendering_s = self._prompt_maker.make(spec, tools, is_held=constraint is not None)
        prompt = prompts[0]
        # A model that is held to a form from the first token on does not reason.
        may_reason = constraint is None and (tools is None or not tools.required)
        form = self._prompt_maker.answer_form(spec, prompt, tools, may_reason=may_reason)
        if tools is not None:
            constraint = self._with_tools(tools, form, constraint)
        grammar = None if constraint is None else self._grammars.compile(constraint, spec.tenant)
        return Prepared(
            spec,
            sum(map(len, prompts)),
            spec.max_tokens,
            sampling,
            prompt,
            grammar,
            strip_space=spec.payload.get("prompt") == "",
            form=form,
            helper_cpu_s=rendering_s + (0.0 if grammar is None else grammar.helper_cpu_s),
            prompts=tuple((each, len(each)) for each in prompts) if len(prompts) > 1 else (),
        )

    def _with_tools(self, tools: ToolRequest, form: Form | None, content: Constraint | None) -> Constraint:
        """Return what an answer with tools, which is read in this form, must match without a call: `content`."""
        if form is None or form.form is None:
            raise JobRejected(EndCode.UNSUPPORTED_PARAMETER, "tools need a chat template", "tools")
        return tool_constraint(
            tools,
            form.form,
            {name.decode(): token for token, name in form.names.items()},
            max_bytes=self._grammars.limits.max_bytes,
            content=content,
            reasons=form.reasons,
            began=form.began,
            ignores_formats=self._grammars.limits.ignores_formats,
        )

    def calibration_job(self, spec: JobSpec, prompt_tokens: int) -> Prepared:
        prompt = np.arange(prompt_tokens, dtype=np.int32) * 7 % self.n_vocab
        return Prepared(spec, prompt_tokens, spec.max_tokens, Sampling(temperature=0.0), prompt)

    # The following methods are called by the engine's thread only.

    def open_slot(self, slot: int, job: Prepared, answer: Sequence[int] = (), saved: Any = None) -> None:
        """Make `slot` ready for a job that continues after the tokens `answer`, which follow its prompt."""
        self._adapters.open_slot(slot, job.spec.adapter)
        self._prompts[slot] = np.concatenate([job.prompt, np.array(answer, np.int32)]) if answer else job.prompt
        grammar = None if job.grammar is None else job.grammar.start()
        self._samplers[slot] = Sampler(job.sampling, grammar, self._vocab.end_tokens)
        for token in answer:
            self._samplers[slot].accept(token)
        if saved is not None:
            self._logprobs[slot] = saved
        elif job.keeps_logprobs:
            piece = self._prompt_maker.text_piece(job.form)
            self._logprobs[slot] = Logprobs(
                job.sampling.logprobs or 0, self._vocab.piece_or_name, piece, self._chooser.largest
            )

    def set_prefix(self, slot: int, source: int, n: int) -> int:
        """Make `slot` hold the first `n` tokens of slot `source` and no others. Both may be the same slot.

        Return `n`, or 0 if the memory cannot drop the other tokens alone. Recurrent memory cannot.
        """
        if slot != source:
            self.clear_slot(slot)
            # Copy the whole sequence: a split cache cannot copy only a part, and a shared cache copies no data.
            llama_cpp.llama_memory_seq_cp(self._memory, source, slot, -1, -1)
        if llama_cpp.llama_memory_seq_rm(self._memory, slot, n, -1):
            return n
        self.clear_slot(slot)
        return 0

    def decode(self, rows: list[BatchRow], meanwhile: Callable[[], None] | None = None) -> list[BatchRow]:
        """Compute all rows with one llama_decode. If it fails, restore the sequences and raise DecodeFailed."""
        if self._damaged and any(row.slot in self._damaged for row in rows):
            raise DecodeFailed("the sequence could not be restored after a step had failed")
        if self.adapters:
            self._adapters.set_for(self._ctx, [row.slot for row in rows])
        # Sort by slot: with a split cache, llama.cpp computes adjacent slots together and all others one by one.
        self._step, self._chosen = sorted(rows, key=attrgetter("slot")), None
        first, outputs = self._fill_batch(self._step)
        batch = self._batch
        code = llama_cpp.llama_decode(self._ctx, batch.filled())
        if code != 0:
            for row in rows:
                if not llama_cpp.llama_memory_seq_rm(self._memory, row.slot, row.start, -1):
                    self.clear_slot(row.slot)
                    self._damaged.add(row.slot)
            raise DecodeFailed(f"llama_decode returned {code} for {batch.n_tokens} tokens: {_LOG.errors()}")
        # On a GPU, llama_decode only hands the work to the device. All times would be those of handing it over.
        if self.computes_apart and meanwhile is not None:
            meanwhile()
        llama_cpp.llama_synchronize(self._ctx)
        if outputs:
            # The logits of all outputs follow one another in the order of the batch.
            logits = llama_cpp.llama_get_logits_ith(self._ctx, first)
            self._logits = rows_at(ctypes.addressof(logits.contents), outputs, self.n_vocab)
        return rows

    def _fill_batch(self, rows: list[BatchRow]) -> tuple[int, int]:
        """Fill the batch and number the outputs. Return where in the batch the first one is, and how many there are."""
        batch = self._batch
        batch.clear()
        answers = [row for row in rows if row.token >= 0]
        for at, row in enumerate(answers):
            row.index = at
        batch.add_tokens([row.token for row in answers], [row.start for row in answers], [row.slot for row in answers])
        first, outputs = 0, len(answers)
        if len(answers) == len(rows):
            return first, outputs
        for row in rows:
            if row.token >= 0:
                continue
            tokens = self._prompts[row.slot][row.start : row.start + row.n]
            last = batch.add_prompt(tokens, row.start, row.slot, last_logits=row.samples)
            if row.samples:
                first = first if outputs else last
                row.index, outputs = outputs, outputs + 1
        return first, outputs

    def sample(self, row: BatchRow, known: int | None = None) -> int:
        """Return the token that follows a computed row, or END. Raises GrammarStuck or GrammarSlow.

        If an earlier attempt has already sampled this token, it is `known`. It is then taken as if it were sampled now.
        """
        sampler = self._samplers[row.slot]
        if sampler.ended:
            return END
        if known is None:
            if self._chosen is None:
                self._chosen = self._choose()
            token = sampler.sample(self._chooser, self._logits, row.index, self._chosen.get(row.index))
        else:
            sampler.accept(token := known)
        if sampler.ends_at(token):
            return END
        if row.slot in self._logprobs:
            self._logprobs[row.slot].add(self._logits[row.index], token)
        return token

    def _choose(self) -> dict[int, int | NothingToChoose]:
        """Return what is chosen from each row of the step, by its index. Rows that depend on drafts are left out."""
        asked: list[Row] = []
        drafts = 0
        for each in self._step:
            # The rows of drafts follow that of the last token.
            drafts = drafts + 1 if each.is_draft else 0
            sampler = self._samplers.get(each.slot)
            if sampler is not None and each.samples and (row := sampler.row(each.index, drafts)) is not None:
                asked.append(row)
        try:
            return dict(zip([row.number for row in asked], self._chooser.choose(self._logits, asked), strict=True))
        except Exception:  # noqa: BLE001 - each row is then chosen by itself, so that only the faulty one fails
            return {}

    def grammar_cpu_s(self, slot: int) -> float:
        sampler = self._samplers.get(slot)
        return 0.0 if sampler is None else sampler.grammar_cpu_s

    def extra_fields(self, slot: int, text: str) -> dict[str, Any]:
        """Return the field `logprobs` for the answer so far if the job keeps them, otherwise no fields."""
        logprobs = self._logprobs.get(slot)
        return {} if logprobs is None else {"logprobs": logprobs.for_text(text)}

    def copy_cells(self, slot: int, limit_bytes: int) -> bytearray | None:
        """Return a copy of the slot's cells; None if it is larger than the limit, or the memory is not a full cache."""
        size = llama_cpp.llama_state_seq_get_size(self._ctx, slot) if self.reuses else 0
        if not 0 < size <= limit_bytes:
            return None
        copy = bytearray(size)
        data = (ctypes.c_uint8 * size).from_buffer(copy)
        return copy if llama_cpp.llama_state_seq_get_data(self._ctx, data, size, slot) == size else None

    def restore_cells(self, slot: int, copy: bytearray) -> bool:
        """Make the slot hold the cells of a copy and no others. Return False, with an empty slot, if it cannot."""
        self.clear_slot(slot)
        data = (ctypes.c_uint8 * len(copy)).from_buffer(copy)
        if llama_cpp.llama_state_seq_set_data(self._ctx, data, len(copy), slot) == len(copy):
            return True
        self.clear_slot(slot)
        return False

    def saved_state(self, slot: int) -> Logprobs | None:
        """Return the logprobs of the answer so far, which cannot be made again from its tokens alone."""
        return self._logprobs.get(slot)

    def close_slot(self, slot: int) -> None:
        """Free what an ended sequence used, except for the slot's cells."""
        self._prompts.pop(slot, None)
        self._adapters.close_slot(slot)
        self._damaged.discard(slot)
        self._logprobs.pop(slot, None)
        self._samplers.pop(slot, None)

    def clear_slot(self, slot: int) -> None:
        llama_cpp.llama_memory_seq_rm(self._memory, slot, -1, -1)

    def check_idle(self, kept: dict[int, int]) -> None:
        """Raise SlotAccountingError if a slot has a sampler, or if the cells that the slots hold differ from `kept`."""
        ends = {slot: llama_cpp.llama_memory_seq_pos_max(self._memory, slot) for slot in range(self.sequences)}
        held = {slot: last + 1 for slot, last in ends.items() if last >= 0}
        if held != kept or self._samplers:
            raise SlotAccountingError(
                f"slots hold {held} cells and should keep {kept}; {sorted(self._samplers)} have samplers"
            )

    def close(self) -> None:
        for slot in list(self._samplers):
            self.close_slot(slot)
        self._chooser.close()
        self._grammars.close()
        self._prompt_maker.close()
        llama_cpp.llama_free(self._ctx)
        llama_cpp.llama_model_free(self._model)


def usable_gpus() -> list[Device]:
    """Return the GPUs of this machine that llama.cpp can use, with their free memory, in the order of their numbers."""
    llama_cpp.llama_backend_init()
    return gpus(_ggml.libggml)


def load_backend(
    settings: WorkerSettings,
    path: Path,
    *,
    index: int = 0,
    workers: int = 1,
    progress: Callable[[float], None] | None = None,
    adapters: Sequence[Adapter] = (),
) -> LlamaBackend | EmbeddingBackend:
    """Load the model at `path` onto the devices that the settings select, and create a context for all slots.

    `index` is this worker's index among the `workers` of this machine. `progress` is called with the fraction of the
    model that is loaded so far, 0 to 1. Raises ModelError if the model or one of its `adapters` cannot be used.
    """
    llama_cpp.llama_backend_init()
    libs = Libraries(llama_cpp, _ggml.libggml, _LOG)
    opened = open_model(libs, settings, path, index=index, workers=workers, progress=progress, adapters=adapters)
    if opened.pooling:
        kind = RankingBackend if opened.pooling == RANK else EmbeddingBackend
        return kind(libs, opened.model, opened.ctx, opened.facts)
    limits = SchemaLimits(
        settings.max_schema_bytes,
        settings.schema_cpu_ms,
        settings.schema_step_ms,
        ignores_formats=settings.unknown_formats == "ignore",
    )
    return LlamaBackend(
        opened.model,
        opened.ctx,
        opened.shape,
        opened.facts,
        limits,
        opened.adapters,
        template_cpu_ms=settings.template_cpu_ms,
        choosing_threads=choosing_threads_of(workers),
        explains_tools=settings.tools_without_template == "generic",
    )

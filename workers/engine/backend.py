"""The interface between the engine's loop and a model: the protocol that the llama and sim backends implement."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from shared.jobs.outcomes import EndCode
from workers.engine.adapter_turns import TURN_S
from workers.engine.events import JobRejected, JobSpec
from workers.engine.sampling import Sampling, read_candidates

#: The value that `sample` returns instead of a token when the model ends its answer.
END = -1


class DecodeFailed(Exception):
    """The model failed to compute a batch."""


@dataclass(frozen=True)
class Prepared:
    """One tokenized and validated job, ready for `Engine.submit`."""

    spec: JobSpec
    prompt_tokens: int
    max_tokens: int
    sampling: Sampling
    #: The prompt in the backend's own format. Only the backend reads it, unless prefixes are reused (`Backend.reuses`).
    prompt: Any = None
    #: The grammar that the answer must follow, in the backend's own format; None if the answer may be any text.
    grammar: Any = None
    #: Whether to remove a space at the beginning of the answer: after an empty prompt, some tokenizers add one.
    strip_space: bool = False
    #: How the text of an answer with calls or reasoning is read (workers/engine/chat); None if the text is the answer.
    form: Any = None
    #: Whether `prompt_tokens` was counted by a tokenizer; otherwise it is an estimate.
    is_counted: bool = True
    #: CPU time that another process spent on preparing the job.
    helper_cpu_s: float = 0.0
    #: How many answers the job generates. `max_tokens` is the length of one.
    candidates: int = 1
    #: If the job has several prompts, each in the backend's own format with its number of tokens. `prompt_tokens` is
    #: then the sum, and the candidates are divided equally among the prompts, in order.
    prompts: tuple[tuple[Any, int], ...] = ()

    @property
    def keeps_logprobs(self) -> bool:
        """Whether the log probability of each token is needed: for the client, or to compare the candidates."""
        return self.sampling.logprobs is not None or self.candidates > 1

    @property
    def cells(self) -> int:
        """The maximum number of KV cells of the job: one for each prompt token, and `max_tokens` for the answer."""
        return self.prompt_tokens + self.max_tokens


@dataclass(slots=True)
class BatchRow:
    """One sequence's part of a step: `n` of its tokens, at the positions from `start` to `start + n - 1`."""

    slot: int
    start: int
    n: int
    #: The generated token to compute; -1 if the row computes tokens of the prompt.
    token: int
    #: Whether the next token is sampled from the logits of the row's last position.
    samples: bool
    #: Whether the token is a draft. The rows of a sequence's drafts follow the row of its last token, in order.
    is_draft: bool = False
    #: Which of the step's outputs are the logits of the last position. Only the backend reads and writes this field.
    index: int = -1


#: The context length, in tokens, of an engine that bounds no job.
UNLIMITED_CTX = 1 << 30


@dataclass(frozen=True)
class Facts:
    """Facts about an engine. A worker logs them when it starts and reports them with each heartbeat.

    An unknown size in bytes is 0.
    """

    engine: str
    device: str
    model: str
    n_ctx: int
    cells: int
    slots: int
    #: `shared` if all slots share one KV cache, `split` if each slot has its own part; "" if there is no KV cache.
    cache: str = ""
    threads: int = 0
    prefill_chunk: int = 0
    #: How an embedding is pooled from its tokens (`mean`, `cls` or `last`), or `rank` for a model that ranks documents;
    #: "" for a model that generates text.
    pooling: str = ""
    #: Number of dimensions of an embedding.
    width: int = 0
    layers: int = 0
    layers_offloaded: int = 0
    weights_bytes: int = 0
    kv_bytes: int = 0
    compute_bytes: int = 0
    #: Prompt tokens per second, measured when the engine starts; the sim backend takes it from its settings.
    prefill_tps: float = 0.0
    #: Duration of a step in which every slot decodes, measured when the engine starts; sim computes it from settings.
    step_ms: float = 0.0
    #: Tokens that all slots together generate per second while every slot decodes.
    decode_tps: float = 0.0
    #: Whether the tokens of a prompt are its words.
    counts_words: bool = False
    #: Whether requests of OpenAI's routes are passed on whole. They are then not limited to what this engine knows.
    forwards: bool = False
    #: Whether such a request may ask for several answers, or have several prompts. Earlier versions ask for one.
    forwards_several: bool = False
    #: Whether answers can call the tools of a request.
    calls_tools: bool = False
    #: The tokens for each shape of a text and each part of a chat (`shared.jobs.prompt_weights`); "" if unknown.
    prompt_weights: str = ""
    #: A sentence that warns the operator; "" if there is no warning.
    warning: str = ""
    #: Identifies the model and its vocabulary, because token ids mean something else to others; "" without ids.
    fingerprint: str = ""

    def sentence(self) -> str:
        """Return one sentence with the model's layers, memory, slots and rates."""
        mib = 1 << 20
        total = self.weights_bytes + self.kv_bytes + self.compute_bytes
        return (
            f"{self.model} on {self.device}: {self.layers_offloaded} of {self.layers} layers on a GPU; "
            f"weights {self.weights_bytes / mib:.1f} + KV {self.kv_bytes / mib:.1f} + compute "
            f"{self.compute_bytes / mib:.1f} = {total / mib:.1f} MiB; {self.slots} slots with {self.cells} cells "
            f"({self.cache}), longest job {self.n_ctx} tokens; "
            f"prefill {self.prefill_tps:.0f} tokens/s, step {self.step_ms:.1f} ms"
        )

    def as_dict(self) -> dict[str, str | int | float]:
        return asdict(self)


class Backend(Protocol):
    """A model that several sequences share. Only the engine's thread calls its methods, except for `prepare`.

    The methods that are implemented here are those of a model that keeps no cells, and whose answers have no text.
    """

    #: The most jobs that can be in a step.
    slots: int
    #: Number of sequences whose cells the memory can hold, at least `slots`. Each has a slot of its own.
    sequences: int
    cells: int
    #: Maximum number of tokens that one job may have, prompt and answer together.
    n_ctx: int
    facts: Facts
    #: True if all rows of a step end at the same time. The planner then limits the number of prompt tokens in a step.
    #: False (sim) if the duration of a row does not depend on other rows. The planner then sets no limit.
    lockstep: bool
    #: Whether the backend supports prefix reuse. If True, `Prepared.prompt` must be an array of tokens.
    reuses: bool
    #: Whether `set_prefix` can drop the last tokens of a slot and keep the others.
    rewinds: bool
    #: Whether a step is faster when its slots have consecutive numbers.
    compact: bool
    #: Whether a device computes a step while the engine's thread can do something else.
    computes_apart: bool
    #: The names of the model's adapters. All rows of a call must have the same one, or all none.
    adapters: tuple[str, ...] = ()
    #: How long the rows of one adapter are computed while those of others wait, in seconds.
    turn_s: float = TURN_S

    def prepare(self, spec: JobSpec) -> Prepared:
        """Tokenize and validate a job. May be called from any thread. Raises JobRejected."""
        ...

    def open_slot(self, slot: int, job: Prepared, answer: Sequence[int] = (), saved: Any = None) -> None:
        """Make `slot` ready for a job that continues after the tokens `answer`, which follow its prompt.

        `saved` is what `saved_state` returned when the job was paused; None if it was not.

        If this method raises an exception, only that job fails.
        """
        ...

    def set_prefix(self, slot: int, source: int, n: int) -> int:  # noqa: ARG002 - see above
        """Make `slot` hold the first `n` tokens of slot `source` and no others. Both may be the same slot.

        Return how many tokens `slot` holds: `n`, or 0 if the model cannot drop the other tokens alone.
        """
        return 0

    def decode(self, rows: list[BatchRow], meanwhile: Callable[[], None] | None = None) -> list[BatchRow]:
        """Compute the rows and return those that were computed. Raises an exception if the model fails.

        If a device computes them apart, `meanwhile` is called while it does. It does not raise.

        The sequences are then as they were before. One that cannot be restored makes each later call fail.
        The backend may compute only some tokens of a row of prompt tokens. It then updates the row's `n` and `samples`.
        """
        ...

    def sample(self, row: BatchRow, known: int | None = None) -> int:
        """Return the token that follows a computed row, or END. If this method raises, only that sequence fails.

        If an earlier attempt has already sampled this token, it is `known`. It is then taken as if it were sampled now.
        """
        ...

    def piece(self, token: int) -> bytes:  # noqa: ARG002 - see above
        """Return the bytes that a token adds to the answer."""
        return b""

    def grammar_cpu_s(self, slot: int) -> float:  # noqa: ARG002 - see above
        """Return the CPU time that the grammar of the slot's sequence has taken so far. Called before `close_slot`."""
        return 0.0

    def extra_fields(self, slot: int, text: str) -> dict[str, Any]:  # noqa: ARG002 - see above
        """Return the answer's fields other than `text`, as values that JSON can encode. Called before `close_slot`."""
        return {}

    def copy_cells(self, slot: int, limit_bytes: int) -> bytearray | None:  # noqa: ARG002 - see above
        """Return a copy of the slot's cells in host memory; None if it cannot be made or is larger than the limit."""
        return None

    def restore_cells(self, slot: int, copy: bytearray) -> bool:  # noqa: ARG002 - see above
        """Make the slot hold the cells of a copy and no others. Return False, with an empty slot, if it cannot."""
        return False

    def saved_state(self, slot: int) -> Any:  # noqa: ARG002 - see above
        """Return the state that the tokens of the slot's sequence cannot restore. Called before `close_slot`."""
        return None

    def close_slot(self, slot: int) -> None:
        """End the slot's sequence but keep its KV cells. Also called after a failed `open_slot`. Never raises."""
        ...

    def clear_slot(self, slot: int) -> None:  # noqa: ARG002 - see above
        """Remove all tokens from a slot's KV cells. Never raises."""
        return

    def check_idle(self, kept: dict[int, int]) -> None:
        """Check that all slots are closed, and that each slot holds as many tokens as `kept` (slot → number) says.

        Raises SlotAccountingError if a slot is still open, or if the KV cache holds more or fewer tokens.
        """
        ...

    def close(self) -> None:
        """Free the model."""
        return


def context_limit(tokens: int) -> str:
    """Return the beginning of a message about a request that is too long; other programs recognize it by this text."""
    return f"This model's maximum context length is {tokens} tokens"


def prepare_within_context(backend: Backend, spec: JobSpec) -> Prepared:
    """Tokenize the job and check that prompt and answer fit the context. May be called from any thread.

    Each candidate gets its part of `JobSpec.max_tokens`. If the client sent no `max_tokens`, or one that may be
    lowered, the answer is shortened to fit. Raises JobRejected if the job does not fit.
    """
    job, candidates = backend.prepare(spec), read_candidates(spec.payload)
    if candidates % max(1, len(job.prompts)):
        raise JobRejected(EndCode.INVALID_VALUE, f"n={candidates} is no multiple of {len(job.prompts)} prompts", "n")
    if candidates > 1:
        job = replace(job, candidates=candidates, max_tokens=max(1, job.max_tokens // candidates))
    longest = min(backend.n_ctx, backend.cells)
    if spec.payload.get("max_tokens") is None or spec.payload.get("shortens") is True:
        job = replace(job, max_tokens=min(job.max_tokens, longest - job.prompt_tokens))
    elif job.max_tokens < 1:
        raise JobRejected(EndCode.INVALID_VALUE, f"max_tokens={job.max_tokens} is less than 1", "max_tokens")
    if job.max_tokens < 1 or job.cells > longest:
        requested = f"{job.prompt_tokens} prompt tokens and max_tokens={max(1, spec.max_tokens // candidates)}"
        message = f"{context_limit(longest)}, and the request has {requested}"
        param = "messages" if "messages" in spec.payload else "prompt"
        raise JobRejected(EndCode.CONTEXT_LENGTH_EXCEEDED, message, param)
    return job

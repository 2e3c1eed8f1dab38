"""What the loop asks of a model: one Protocol, which llama.py and sim.py keep."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from shared.jobs.outcomes import EndCode
from workers.engine.events import JobRejected, JobSpec
from workers.engine.sampling import Sampling

#: What `sample` answers when the model ends its answer.
END = -1


class DecodeFailed(Exception):
    """The model gave up on a batch; its rows are as if it had not been tried."""


@dataclass(frozen=True)
class Prepared:
    """One job, tokenized and validated: what `Engine.submit` takes."""

    spec: JobSpec
    prompt_tokens: int
    max_tokens: int
    sampling: Sampling
    #: The prompt as the backend keeps it; nobody else looks inside.
    prompt: Any = None
    #: What the grammar came to, as the backend keeps it.
    grammar: str = ""
    #: The first token's leading space is the tokenizer's, not the answer's.
    strip_space: bool = False

    @property
    def cells(self) -> int:
        """KV cells that the job may fill: its prompt and its longest answer."""
        return self.prompt_tokens + self.max_tokens


@dataclass(slots=True)
class BatchRow:
    """One sequence's part of a step: `n` tokens that go to positions `start` and after."""

    slot: int
    start: int
    n: int
    #: The token to feed; -1 for the prompt's own tokens start … start + n.
    token: int
    #: Whether a token is sampled after its last position.
    samples: bool
    #: Where the backend finds that position's logits; its own business.
    index: int = -1


@dataclass(frozen=True)
class Facts:
    """What a worker says of its engine at start and with each beat. Sizes in bytes; 0 where unknown."""

    engine: str
    device: str
    model: str
    n_ctx: int
    cells: int
    slots: int
    #: `shared` by all slots, or `split` into a part for each; "" without a cache.
    cache: str = ""
    threads: int = 0
    prefill_chunk: int = 0
    #: How a model that makes embeddings pools them (`mean`, `cls`, `last`); "" for one that continues text.
    pooling: str = ""
    #: Numbers of an embedding.
    width: int = 0
    layers: int = 0
    layers_offloaded: int = 0
    weights_bytes: int = 0
    kv_bytes: int = 0
    compute_bytes: int = 0
    #: Measured at start: prompt tokens a second; one step with every slot decoding; what that makes a second.
    prefill_tps: float = 0.0
    step_ms: float = 0.0
    decode_tps: float = 0.0
    #: What the operator should know, as a sentence; "" for nothing.
    warning: str = ""

    def sentence(self) -> str:
        """What went where, for the start-up line."""
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
        """The fields by name, as a beat carries them."""
        return asdict(self)


class Backend(Protocol):
    """A model that several sequences share. All but `prepare` is called by the engine's thread only."""

    slots: int
    cells: int
    #: The longest job in tokens, prompt and answer.
    n_ctx: int
    facts: Facts
    #: True: a step ends for all rows at once, and the planner bounds it. False: each row takes its own
    #: time (sim), so prompts need no bound.
    lockstep: bool
    #: Whether a sequence may begin with what another has computed; needs `Prepared.prompt` to be an array of tokens.
    reuses: bool
    #: Whether a step is fastest when its slots are neighbours.
    compact: bool

    def prepare(self, spec: JobSpec) -> Prepared:
        """Tokenize and validate; callable by any thread. Raises JobRejected."""
        ...

    def open(self, slot: int, job: Prepared) -> None:
        """Make `slot` ready for the job. Raises whatever is wrong with that job alone."""
        ...

    def begin(self, slot: int, source: int, n: int) -> None:
        """Let `slot` hold the first `n` tokens of what slot `source` holds, which may be itself, and no more."""
        ...

    def decode(self, rows: list[BatchRow]) -> list[BatchRow]:
        """Compute the rows; those that are done. Raises when the model fails.

        A row of a prompt may be done in part, which the backend writes into its `n` and `samples`.
        """
        ...

    def sample(self, row: BatchRow) -> int:
        """The next token of a done row that samples, or END. Raises whatever is wrong with that sequence."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        ...

    def more(self, slot: int, text: str) -> dict[str, Any]:
        """What the open slot's answer holds beside its `text`, ready for JSON."""
        ...

    def close_slot(self, slot: int) -> None:
        """The slot's sequence has ended; its cells stay. Also after a failed `open`. Never raises."""
        ...

    def forget(self, slot: int) -> None:
        """Empty a slot's cells. Never raises."""
        ...

    def check_idle(self, kept: dict[int, int]) -> None:
        """With every slot closed: raise SlotAccountingError if a sequence is left, or cells other than `kept`."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...


def prepare_to_fit(backend: Backend, spec: JobSpec) -> Prepared:
    """The job, tokenized, with an answer that the context has room for; any thread. Raises JobRejected."""
    job = backend.prepare(spec)
    longest = min(backend.n_ctx, backend.cells)
    if spec.payload.get("max_tokens") is None:
        job = replace(job, max_tokens=min(job.max_tokens, longest - job.prompt_tokens))
    elif job.max_tokens < 1:
        raise JobRejected(EndCode.INVALID_VALUE, f"max_tokens={job.max_tokens} is not at least 1", "max_tokens")
    if job.max_tokens < 1 or job.cells > longest:
        asked = f"{job.prompt_tokens} prompt tokens and max_tokens {max(1, spec.max_tokens)}"
        message = f"{asked} do not fit the context of {longest} tokens"
        param = "messages" if spec.payload.get("prompt") is None else "prompt"
        raise JobRejected(EndCode.CONTEXT_LENGTH_EXCEEDED, message, param)
    return job

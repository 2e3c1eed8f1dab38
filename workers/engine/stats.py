"""The engine's settings and its counters."""

from dataclasses import dataclass, field
from enum import StrEnum


class PauseWay(StrEnum):
    """Where the computed tokens of a paused job were when its pause ended; the label `way` of `penstock_pauses`."""

    #: Their cells were still in the KV cache.
    KEPT = "kept"
    #: Their cells were copied to host memory.
    COPIED = "copied"
    #: Nowhere: they have to be computed again.
    RECOMPUTED = "recomputed"


@dataclass(frozen=True)
class EngineSettings:
    """Settings of the engine's loop. The numbers of slots and cells and the longest job are defined by the backend."""

    prefill_chunk: int = 512
    step_target_ms: float = 250.0
    #: How long an idle engine that receives a job waits for more jobs before it runs a step.
    batch_timeout_ms: float = 0.0
    #: Whether prefix reuse is on: a job may start from tokens that an earlier job of its tenant computed.
    reuse: bool = True
    #: Maximum number of bytes of the copies of paused jobs' cells in host memory.
    paused_bytes: int = 1 << 30
    #: The most generated tokens between two Text events. Further tokens whose text is held back get an event without
    #: text.
    resume_tokens: int = 32
    #: Whether tokens of answers are drafted from their prompts and from what they already have (speculation).
    speculates: bool = False


@dataclass
class EngineStats:
    """Counters since the engine was created. The engine's thread writes them; any thread may read them."""

    steps: int = 0
    #: Number of prompt tokens that the model computed.
    prompt_tokens: int = 0
    #: Number of prompt tokens that were not computed, because they were reused from earlier jobs (prefix reuse).
    cached_tokens: int = 0
    completion_tokens: int = 0
    #: The time that jobs have run, of all jobs together, and the integral of the squared number of running jobs over
    #: time, both in seconds. Kept only by an engine whose speed with more jobs is not calibrated.
    jobs_s: float = 0.0
    jobs_squared_s: float = 0.0
    #: Number of tokens that were computed in vain: a step that was already running computed them for a job after the
    #: job's deadline, after a cancel, or after the worker reported that the job's lease was lost.
    dead_tokens: int = 0
    #: Total time of the backend's `decode` calls, in seconds.
    decode_s: float = 0.0
    #: Number of times that a running job was paused.
    pauses: int = 0
    #: Number of pauses that have ended.
    ways: dict[PauseWay, int] = field(default_factory=lambda: dict.fromkeys(PauseWay, 0))
    #: Number of tokens that were computed again after a pause, or because an earlier attempt had computed them.
    recomputed_tokens: int = 0
    #: Number of drafted tokens that were the ones that were then sampled, and of those that were not.
    drafts_accepted: int = 0
    drafts_rejected: int = 0

    @property
    def progress(self) -> int:
        """A number that changes as long as the engine gets on with its jobs; the watchdog observes it."""
        return self.prompt_tokens + self.completion_tokens + self.recomputed_tokens

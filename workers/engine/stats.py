"""What the loop keeps to, and what it counts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSettings:
    """What the loop keeps to; slots, cells and the longest job are the backend's."""

    prefill_chunk: int = 512
    step_target_ms: float = 250.0
    #: How long an idle engine waits for company before its first step.
    batch_timeout_ms: float = 0.0
    #: Whether a job begins with what its tenant has computed before.
    reuse: bool = True


@dataclass
class EngineStats:
    """Counters since birth, written by the engine's thread and read by any."""

    steps: int = 0
    #: Prompt tokens computed, and those that were not computed again.
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    #: Tokens computed after the deadline, or from when the engine was told of the cancel or of the lost lease: by the
    #: step that was under way.
    dead_tokens: int = 0
    #: Time inside decode, in s.
    decode_s: float = 0.0

"""The reference's records: a job that was admitted, and what a worker left."""

from dataclasses import dataclass, field


@dataclass
class ModelJob:
    """One admitted job. Moments are ms; a cost or latest start of -1 is worked out at its admission."""

    id: str
    tenant: str
    slug: str
    prompt_tokens: int
    max_tokens: int
    deadline_ms: int
    cost_mwt: int = -1
    latest_ms: int = -1
    poll_grace_ms: int = 0
    start_within_ms: int = 0
    supersede_key: str = ""
    admitted_ms: int = 0
    state: str = "queued"
    code: str = ""
    attempts: int = 0
    claim: str = ""
    worker: str = ""
    cancel: str = ""
    charged_mwt: int = 0
    skips: int = 0
    #: Names the offering that made it, "" once somebody else has heard of it: by it, it can be taken back.
    offer: str = ""
    #: Whether it may be changed; where it was taken so, the tier that its admission rests on (0: none). None: never.
    degrade: bool = False
    taken_at_tier: int | None = None
    #: What its answer is cut to, and at which tier; 0 when it is not.
    cut_tokens: int = 0
    cut_tier: int = 0
    waits_from_ms: int = 0
    started_ms: int = 0
    lease_ms: int = 0
    poll_by_ms: int | None = None

    @property
    def wanted_ms(self) -> int:
        """Until when somebody wants it while it waits."""
        first_token_ms = self.admitted_ms + self.start_within_ms
        return min(self.deadline_ms, first_token_ms) if self.start_within_ms else self.deadline_ms

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.max_tokens


@dataclass
class ModelWorker:
    """What a worker's beat and last claim left."""

    slug: str
    slots: int
    cells: int
    beat_ms: int
    claim_id: str = ""
    claim_ids: list[str] = field(default_factory=list)
    suspect: str = ""

"""The records of the reference model: an admitted job, and a worker."""

import math
from collections import Counter
from dataclasses import dataclass, field

from tests.support.model_weight import USUAL_MILLI, WorkerRates


@dataclass
class ModelJob:
    """One admitted job. Times are in ms; a cost or latest start of -1 is computed at the admission."""

    id: str
    tenant: str
    slug: str
    prompt_tokens: int
    max_tokens: int
    deadline_ms: int
    cost_mwt: int = -1
    #: The cost of each generated token, in thousandths of a prompt token.
    weight_milli: int = USUAL_MILLI
    latest_ms: int = -1
    #: -1 for a batch job, 0 or 1.
    priority: int = 0
    poll_grace_ms: int = 0
    start_within_ms: int = 0
    supersede_key: str = ""
    admitted_ms: int = 0
    state: str = "queued"
    code: str = ""
    attempts: int = 0
    #: The crashes that were no attempts, because other jobs ran on the same worker; and how many jobs, itself included,
    #: may run together with it, 0 for any number.
    pardons: int = 0
    company: int = 0
    claim: str = ""
    worker: str = ""
    cancel: str = ""
    #: The tenant and, if it had one at the admission, its group: in whose budgets the job counts.
    budget_owners: frozenset[str] = frozenset()
    #: The group in which it was claimed, "" for none, and what its tenant and this group were charged for it.
    group: str = ""
    charges_mwt: Counter[str] = field(default_factory=Counter)
    skips: int = 0
    #: The id of the offer that admitted the job, which can cancel it; "" once another offer has found the job.
    offer: str = ""
    #: Whether the job may be degraded.
    degrade: bool = False
    #: The tier on which the admission rests, 0 if on none; None if the job was not admitted as degradable.
    admitted_at_tier: int | None = None
    #: The length to which the answer is cut, and the tier of the cut; 0 if the answer is not cut.
    cut_tokens: int = 0
    cut_tier: int = 0
    #: The length of the request as JSON, and the bytes that its answer may take.
    payload_bytes: int = 0
    answer_bytes: int = 0
    #: The number of entries of its event stream before it ends: of claims, and of returns to its queue.
    entries: int = 0
    #: For the record of an ended job with its result, and for its event stream: the time of expiry in s and the bytes.
    kept: list[tuple[int, int]] = field(default_factory=list)
    result_bytes: int = 0
    readable_until_ms: int = 0
    waits_from_ms: int = 0
    started_ms: int = 0
    #: The predicted wait and the class of the job; None if nothing was predicted.
    prediction: tuple[int, str] | None = None
    was_claimed: bool = False
    lease_ms: int = 0
    #: Since when the running job is paused; 0 if it is not.
    paused_since_ms: int = 0
    #: How long its ended pauses took, in all its attempts and in those before the present one.
    paused_ms: int = 0
    paused_before_ms: int = 0
    poll_by_ms: int | None = None

    @property
    def expires_ms(self) -> int:
        """The time at which the job expires while it is queued."""
        first_token_ms = self.admitted_ms + self.start_within_ms
        return min(self.deadline_ms, first_token_ms) if self.start_within_ms else self.deadline_ms

    @property
    def counted_attempts(self) -> int:
        return max(0, self.attempts - self.pardons)

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.max_tokens

    def cost_of(self, prompt_tokens: int, generated_tokens: float) -> int:
        """Return what these tokens of the job cost."""
        return math.floor(1_000 * prompt_tokens + self.weight_milli * generated_tokens)


@dataclass
class ModelWorker:
    """The figures that the last heartbeat and the last claim of a worker wrote."""

    slug: str
    slots: int
    cells: int
    heartbeat_ms: int
    claim_id: str = ""
    claim_ids: list[str] = field(default_factory=list)
    resume_ids: list[str] = field(default_factory=list)
    pause_ids: list[str] = field(default_factory=list)
    suspect: str = ""
    #: Weighted tokens a second, prompt tokens a second, ms for each generated token, generated tokens a second in the
    #: first, and the fit; 0 if it reports none.
    rates: WorkerRates = (0, 0, 0, 0, 0)

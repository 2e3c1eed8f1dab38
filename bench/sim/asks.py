"""A simulated job as its client sees it, from the first send to its end, and the door's answer to an offer."""

from dataclasses import dataclass, field

#: Cost of a generated token, in prompt tokens that had to be computed (PENSTOCK_GENERATED_WEIGHT).
GENERATED_WEIGHT = 4


#: The name of the model in runs with one model.
MODEL = "modelled"


@dataclass(slots=True, eq=False)
class SimJob:
    """A request that is fixed in advance (the first fields) and what happened to it. Times are ms of virtual time."""

    number: int
    tenant: str
    #: Time of the first send. It is absolute and does not depend on what happens to other jobs.
    at_ms: float
    prompt: int
    #: Number of tokens after which the model itself ends the answer. Neither client nor system knows it in advance.
    answer: int
    max_tokens: int
    deadline_ms: int
    light: bool = False
    #: The client leaves this many ms after its last send; None if it stays.
    leaves_after_ms: float | None = None
    #: The name of the model that the client requests.
    model: str = MODEL
    #: The group of the tenant, "" if it has none.
    group: str = ""
    #: The door's estimate of the prompt's length; None if the door knows the length.
    door_prompt: int | None = None

    attempts: int = 0
    #: Reason of the last refusal, "" if the job was never refused.
    refusal: str = ""
    #: Time at which the client gave up after refusals.
    gave_up_ms: float | None = None
    sent_ms: float = 0.0
    admitted_ms: float | None = None
    claimed_ms: float | None = None
    first_token_ms: float | None = None
    ended_ms: float | None = None
    outcome: str = ""
    #: Tokens that workers computed for the job, over all its claims.
    computed_prompt: int = 0
    computed_answer: int = 0
    #: The part of these tokens that was computed after the client had left or the deadline had passed.
    dead_tokens: int = 0
    gone: bool = field(default=False)
    #: When the job would have its first token and when it would end, as predicted at admission; None without a
    #: prediction. Eight of ten jobs should end in the interval.
    predicted_start_ms: float | None = None
    predicted_end_ms: float | None = None
    predicted_interval_ms: tuple[float, float] | None = None
    #: The hint of the first refusal if the client was asked to come back, when the client came back for the first time,
    #: and whether it was then admitted.
    first_hint_ms: float | None = None
    returned_ms: float | None = None
    return_admitted: bool = False
    #: The tokens that were cut from the answer to meet its deadline (PENSTOCK_DEGRADATION).
    cut_tokens: int = 0
    #: How often it was paused, and for how long it had had a slot before its last pause.
    pauses: int = 0
    slot_ms: float = 0.0

    @property
    def account(self) -> str:
        """The name of the group if the tenant has one, otherwise the tenant: what a rival takes for one tenant."""
        return self.group or self.tenant

    @property
    def estimated_prompt(self) -> int:
        """The prompt tokens that the door counts."""
        return self.prompt if self.door_prompt is None else self.door_prompt

    @property
    def cost_wt(self) -> int:
        """The cost of the complete job, in weighted tokens."""
        return self.prompt + GENERATED_WEIGHT * self.answer

    @property
    def computed_wt(self) -> int:
        """The work that was computed for the job, in weighted tokens."""
        return self.computed_prompt + GENERATED_WEIGHT * self.computed_answer

    @property
    def deadline_at_ms(self) -> float:
        """The deadline of the last attempt, as a time."""
        return self.sent_ms + self.deadline_ms

    @property
    def in_time(self) -> bool:
        """Whether the complete answer was ready before the deadline of the admitted attempt."""
        return self.outcome == "succeeded" and self.ended_ms is not None and self.ended_ms <= self.deadline_at_ms


@dataclass(frozen=True)
class Answer:
    """The door's answer to an offer. `reason`, `hint_ms` and `worth_retrying` are meaningful only for refusals."""

    #: Whether the job was admitted.
    taken: bool
    reason: str = ""
    hint_ms: int = 0
    #: False if the door answered that a retry cannot be answered before the client's deadline.
    worth_retrying: bool = True


TAKEN = Answer(taken=True)

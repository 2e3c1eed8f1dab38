"""One ask: a job as its client sees it, from the first send to its end; and the whole plan of a run."""

from dataclasses import dataclass, field

#: A generated token's cost in uncached prompt tokens (PENSTOCK_GENERATED_WEIGHT).
GENERATED_WEIGHT = 4


@dataclass(slots=True, eq=False)
class Ask:
    """What somebody wants, fixed at birth, and below it what became of it. Moments are ms of virtual time."""

    number: int
    tenant: str
    #: When it is sent first; absolute, whatever happened to others.
    at_ms: float
    prompt: int
    #: Tokens after which the model itself ends the answer: nobody knows it before.
    answer: int
    max_tokens: int
    deadline_ms: int
    light: bool = False
    #: The client is gone after this long, in ms from its last send.
    leaves_after_ms: float | None = None

    attempts: int = 0
    #: The last refusal's reason, "" while there was none.
    refusal: str = ""
    #: When the client gave up, after refusals.
    gave_up_ms: float | None = None
    sent_ms: float = 0.0
    admitted_ms: float | None = None
    claimed_ms: float | None = None
    first_token_ms: float | None = None
    ended_ms: float | None = None
    outcome: str = ""
    #: Tokens that workers computed for it, over all its claims.
    computed_prompt: int = 0
    computed_answer: int = 0
    #: Of these, after its client had gone or its deadline had passed.
    dead_tokens: int = 0
    gone: bool = field(default=False)
    #: Of its answer, what was cut off so that it fits its deadline (PENSTOCK_DEGRADATION).
    cut_tokens: int = 0

    @property
    def cost_wt(self) -> int:
        """What the whole job is worth, in weighted tokens."""
        return self.prompt + GENERATED_WEIGHT * self.answer

    @property
    def computed_wt(self) -> int:
        """What was computed for it, in weighted tokens."""
        return self.computed_prompt + GENERATED_WEIGHT * self.computed_answer

    @property
    def deadline_at_ms(self) -> float:
        """When the last attempt's patience ends."""
        return self.sent_ms + self.deadline_ms

    @property
    def in_time(self) -> bool:
        """Whether its answer was ready, whole, within the patience of the attempt that was taken."""
        return self.outcome == "succeeded" and self.ended_ms is not None and self.ended_ms <= self.deadline_at_ms


@dataclass(frozen=True)
class Answer:
    """What the door said. `hint_ms` counts only for refusals."""

    taken: bool
    reason: str = ""
    hint_ms: int = 0
    #: False: the door said that coming back within the client's patience makes no sense.
    worth_retrying: bool = True


TAKEN = Answer(taken=True)

"""A job as the rooms hand it around: what is admitted, what is claimed, what is read back."""

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from shared.jobs.outcomes import Outcome, Stage
from shared.jobs.states import JobState


def new_job_id() -> str:
    """An unguessable id (128 bits) of letters, digits, `-` and `_`, as RQ asks for."""
    return secrets.token_urlsafe(16)


@dataclass(frozen=True)
class NewJob:
    """What the door hands to `Store.admit`. Times are relative: the store's TIME makes them moments."""

    id: str
    tenant: str
    #: The served name; its slug stands in keys.
    model: str
    #: The request: `prompt` or `messages`, sampling, `max_tokens`; read by the engine, never by a script.
    payload: dict[str, Any]
    #: Estimate at the door; the engine counts.
    prompt_tokens: int
    max_tokens: int
    deadline_ms: int
    #: Where the deadline came from: `body`, `header`, `default`.
    patience_from: str = "default"
    #: Cost in thousandths of a weighted token (docs/fairness.md); None: the store estimates it from learned lengths.
    cost_mwt: int | None = None
    #: The latest moment to start and still end in time, as ms from admission, which orders the tenant's list;
    #: None: the store works it out.
    latest_start_ms: int | None = None
    start_within_ms: int | None = None
    poll_grace_ms: int | None = None
    #: What a refusal is known again by, so that a repeat of it books nothing twice; None: the job's id.
    asked_id: str | None = None
    #: Digests of Idempotency-Key and body; None when the client sent no key.
    idem_digest: str | None = None
    body_digest: str = ""
    key_label: str = ""
    traceparent: str = ""
    #: Small facts of the request that its route wants to read back (JobView.form); no prompt, no answer.
    form: dict[str, Any] = field(default_factory=dict)
    #: Digest of the supersede_key: the tenant's older job of the same key is canceled; None for none.
    supersede_digest: str | None = None
    #: Whether its answer may be cut under pressure: its tenant opted in, and nothing in the request forbids it.
    degrade: bool = False
    #: Names this offering of the job, so that its door can take back what nobody has heard of (Store.cancel).
    offer: str = ""


@dataclass(frozen=True)
class Held:
    """A job under a lease: the id and the claim token that fences it."""

    id: str
    token: str


@dataclass(frozen=True)
class Claimed:
    """A job handed to a worker by a claim."""

    id: str
    token: str
    tenant: str
    model: str
    payload: dict[str, Any]
    attempt: int
    #: What is left until the deadline, by the store's TIME at the claim.
    deadline_in_ms: int
    #: What is left of start_within_ms; None when the job names none.
    start_in_ms: int | None
    prompt_tokens: int
    max_tokens: int
    cancel_requested: bool = False
    traceparent: str = ""

    @property
    def held(self) -> Held:
        """The claim's id and token."""
        return Held(self.id, self.token)


@dataclass(frozen=True)
class Usage:
    """True counts of an ended job. Times in ms; None where the job did not get that far."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    prefill_ms: int | None = None
    decode_ms: int | None = None
    #: From the claim's arrival at the engine to the first token; the door adds the queue.
    ttft_ms: int | None = None
    #: Of the prompt, what was never computed: the job ended before. For the books alone, and no part of the result.
    unread_tokens: int = 0

    def as_dict(self) -> dict[str, int | None]:
        """The fields as they are stored in the result."""
        return {name: count for name, count in vars(self).items() if name != "unread_tokens"}


@dataclass(frozen=True)
class Ending:
    """How a worker says a job ended. The store has the last word (cancel, deadline)."""

    id: str
    token: str
    outcome: Outcome
    #: A FinishReason, or "" where there is none.
    finish_reason: str = ""
    #: An EndCode for what did not succeed.
    code: str = ""
    stage: Stage | None = None
    #: For people; never holds prompt or answer.
    message: str = ""
    text: str = ""
    usage: Usage = field(default_factory=Usage)
    #: More of the answer, such as logprobs; JSON-serialisable.
    extra: dict[str, Any] = field(default_factory=dict)

    def result_json(self) -> str:
        """The text, usage and message as `penstock:result:<id>` holds them."""
        body: dict[str, Any] = {"text": self.text, "usage": self.usage.as_dict(), "message": self.message}
        return json.dumps(body | self.extra, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class Waited:
    """Why a job waited, in ms; the parts sum to the wait by construction."""

    #: Until it was first at the head of its tenant's list: its own tenant's jobs stood before it.
    own_ms: int
    #: From there to its claim: other tenants' turns, or no free slot.
    turn_ms: int
    #: Again, after a lapsed lease or a drain.
    requeued_ms: int


@dataclass(frozen=True)
class Change:
    """What of a job was changed so that it is answered in time."""

    #: `max_tokens` is all that is ever changed.
    what: str
    before: int
    after: int
    why: str

    def as_dict(self) -> dict[str, str | int]:
        """As every answer about the job tells it."""
        return {"what": self.what, "from": self.before, "to": self.after, "why": self.why}


@dataclass(frozen=True)
class JobView:
    """One job as the store knows it; everything HTTP says of a job is made from this."""

    id: str
    tenant: str
    model: str
    state: JobState
    #: Moments by the store's TIME, in ms since the epoch; None while they have not come.
    admitted_ms: int
    deadline_at_ms: int
    started_ms: int | None
    ended_ms: int | None
    deadline_ms: int
    patience_from: str
    attempts: int
    cancel_requested: bool
    prompt_tokens: int
    max_tokens: int
    metadata: dict[str, str]
    finish_reason: str
    code: str
    stage: str
    worker: str
    #: From the result: None until the job has ended (and when the text was erased).
    text: str | None
    usage: Usage | None
    message: str
    #: 1 is next in the tenant's own list; None when the job does not wait.
    position: int | None
    now_ms: int
    #: First claim and first time at the list's head, for the parts of the wait.
    first_claim_ms: int | None = None
    #: Prompt and answer tokens of the jobs before it in that list; None when it does not wait or the list is long.
    ahead_tokens: int | None = None
    #: How long it may go unpolled; 0: for ever.
    poll_grace_ms: int = 0
    head_ms: int | None = None
    #: Time it waited again after a lapse or a release.
    requeued_ms: int = 0
    #: The predicted end, by the rates at its admission; None where they were unknown.
    eta_at_ms: int | None = None
    #: What was changed of it, of its last claim; empty for a job that runs as it was asked for.
    degraded: tuple[Change, ...] = ()
    #: As NewJob.form.
    form: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def waited(self) -> Waited:
        """The parts of the wait until the claim, the end or now, whichever came first."""
        until = self.first_claim_ms or self.ended_ms or self.now_ms
        head = min(until, self.head_ms or until)
        return Waited(max(0, head - self.admitted_ms), max(0, until - head), self.requeued_ms)

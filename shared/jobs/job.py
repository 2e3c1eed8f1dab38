"""The types that describe a job when it is admitted, claimed, settled and read; the door and the workers use them."""

import json
import secrets
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shared.candidates import candidates_in
from shared.jobs import packed_logprobs
from shared.jobs.cost import answer_bytes
from shared.jobs.job_history import Change, WaitTimes
from shared.jobs.key_bounds import KeyBounds
from shared.jobs.outcomes import Outcome, Stage
from shared.jobs.request import JobRequest
from shared.jobs.routing import Routed, Routing
from shared.jobs.states import JobState


def new_job_id() -> str:
    """Return a random id (128 bits) of letters, digits, `-` and `_`, the characters that RQ allows."""
    return secrets.token_urlsafe(16)


@dataclass(frozen=True)
class FewerPassages:
    """The same job with fewer of the passages that were found for it."""

    payload: dict[str, Any]
    prompt_tokens: int
    form: dict[str, Any]
    #: Whether the job gets fewer passages under overload even if it could be admitted with all: the tenant opted in.
    under_overload: bool


@dataclass(frozen=True)
class NewJob:
    """A job that the door offers to `Store.admit`.

    Times are in ms from the offer; the store converts them to points in time with its own TIME.
    """

    id: str
    tenant: str
    #: The served name of the model. Store keys contain the slug of this name.
    model: str
    #: The input of the engine: `prompt`, `messages` or `input`, sampling parameters, `max_tokens`. Scripts store it
    #: unparsed.
    payload: dict[str, Any]
    #: The door's estimate of the prompt's length; the engine counts the tokens later.
    prompt_tokens: int
    max_tokens: int
    deadline_ms: int
    #: The source of the deadline: `body`, `header` or `default`.
    deadline_source: str = "default"
    #: The cost in thousandths of a weighted token (docs/fairness.md). If None, the store estimates the cost from the
    #: lengths of earlier answers.
    cost_mwt: int | None = None
    #: The latest time, in ms from admission, at which the job can start and still meet its deadline. The tenant's queue
    #: is ordered by this time. If None, the store computes it.
    latest_start_ms: int | None = None
    start_within_ms: int | None = None
    #: Whether the client itself named `start_within_ms`.
    start_named: bool = False
    #: Up to which deadline the store may extend deadlines that the client did not name; 0 if it named one.
    longest_deadline_ms: int = 0
    poll_grace_ms: int | None = None
    #: The contents of the request's return ticket: the id of a reservation and the end of its hint, in ms since the
    #: epoch. They are "" and 0 without a valid ticket.
    ticket_id: str = ""
    ticket_ms: int = 0
    key_label: str = ""
    #: The id and the bounds of the client's API key; None if the key has no bounds of its own.
    key_id: str = ""
    key_bounds: KeyBounds | None = None
    #: Digest of the supersede_key, or None. If this job is admitted, the tenant's older job with the same supersede_key
    #: is canceled.
    supersede_digest: str | None = None
    #: Whether the answer may be cut under overload: the tenant opted in and the request does not forbid it.
    degrade: bool = False
    #: Whether only pools that are marked as local may take the job. A tenant's policy can demand it too.
    private: bool = False
    #: The route that the request names; None if it names a pool. With a route, `model` is the name of the route.
    routing: Routing | None = None
    #: The job that the store admits instead if it would refuse this one for its tokens or its deadline; else None.
    fewer: FewerPassages | None = None
    #: The digests of the prompt's beginnings (shared/jobs/prompt_prefix.py); "" without any.
    prefix: str = ""
    #: The id of this offer. If the store's answer to the offer is lost, the door passes this id to Store.cancel.
    offer: str = ""
    request: JobRequest = field(default_factory=JobRequest)

    @property
    def candidates(self) -> int:
        """How many answers share `max_tokens`."""
        return candidates_in(self.payload)

    @property
    def answer_bytes(self) -> int:
        """The most bytes that the answer is expected to take in the store, with its event stream."""
        return answer_bytes(self.payload, self.max_tokens)


class ClaimRef(NamedTuple):
    """A reference to one claim of a job: the job's id and the claim token, which serves as a fencing token."""

    id: str
    token: str


@dataclass(frozen=True)
class Deferral:
    """How a job waits that is given back because the server behind its worker did not take it or failed."""

    #: How long the job is not claimed again, in ms. The store lengthens it if that server refuses the job repeatedly.
    wait_ms: int = 0
    #: Why that server refused the job; "" if it did not. A refusal is counted, and the job fails with this in the end.
    refusal: str = ""

    @property
    def arguments(self) -> tuple[int, str]:
        """The arguments of the script release that are about one job."""
        result = Ending("", "", Outcome.FAILED, message=self.refusal).result_json() if self.refusal else ""
        return self.wait_ms, result


@dataclass(frozen=True)
class ClaimedJob:
    """A job that a worker has claimed."""

    id: str
    token: str
    tenant: str
    model: str
    payload: dict[str, Any]
    attempt: int
    #: Time from the claim to the deadline, in ms, measured with the store's TIME.
    deadline_in_ms: int
    #: Time from the claim to the start deadline, in ms; None if the job has none.
    start_in_ms: int | None
    prompt_tokens: int
    max_tokens: int
    cancel_requested: bool = False
    traceparent: str = ""
    #: The tokens that earlier attempts generated. The answer continues after them.
    answer: tuple[int, ...] = ()
    key_label: str = ""
    #: How long the job was queued before this claim, in ms: since its admission, or since it was last given back.
    waited_ms: int = 0
    #: Whether somebody follows the text. None if the job's door is of a version that does not say.
    is_followed: bool | None = None

    @property
    def held(self) -> ClaimRef:
        return ClaimRef(self.id, self.token)

    @property
    def cells(self) -> int:
        """The KV cells that the engine reserves, as the door has estimated them: those of one candidate."""
        return self.prompt_tokens + -(-self.max_tokens // candidates_in(self.payload))


@dataclass(frozen=True)
class Usage:
    """The exact token counts and times of an ended job. Times are in ms, or None for a stage that was not reached."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    prefill_ms: int | None = None
    decode_ms: int | None = None
    #: Time from the job's submission to the engine to its first token. The door adds the time in the queue.
    ttft_ms: int | None = None
    #: Prompt tokens that had been neither computed nor reused when the job ended. They are not counted anywhere.
    unread_tokens: int = 0
    #: The worker's charge for the CPU time of the job's preparation and of its grammar, in weighted tokens.
    cpu_tokens: int = 0
    #: Tokens that were computed again, after a pause or because an earlier attempt had computed them.
    again_tokens: int = 0

    def as_dict(self) -> dict[str, int | None]:
        """Return the counts and times that are stored in the result: all but the last three fields."""
        return dict(list(vars(self).items())[:-3]) | {"prompt_tokens": self.read_tokens}

    @property
    def read_tokens(self) -> int:
        """The prompt tokens that were computed or reused: those of the whole prompt unless the job ended before."""
        return self.prompt_tokens - self.unread_tokens

    @property
    def arguments(self) -> dict[str, int]:
        """The arguments of the script settle about the computed tokens and their times."""
        return {
            "prompt_tokens": self.read_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "again_tokens": self.again_tokens,
            "cpu_tokens": self.cpu_tokens,
            "ttft_ms": -1 if self.ttft_ms is None else self.ttft_ms,
            "decode_ms": -1 if self.decode_ms is None else self.decode_ms,
        }


@dataclass(frozen=True)
class Ending:
    """A worker's report of how a job ended.

    The store may record another outcome if the job was canceled or its deadline has passed.
    """

    id: str
    token: str
    outcome: Outcome
    #: A FinishReason, or "" if the job has none.
    finish_reason: str = ""
    #: An EndCode if the job did not succeed, else "".
    code: str = ""
    stage: Stage | None = None
    #: A human-readable explanation of how the job ended; never contains the prompt or the answer.
    message: str = ""
    text: str = ""
    usage: Usage = field(default_factory=Usage)
    #: Further parts of the answer, such as logprobs; must be JSON-serializable.
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def claim(self) -> ClaimRef:
        return ClaimRef(self.id, self.token)

    def result_json(self) -> str:
        """Return the JSON text to store in `penstock:result:<id>`: text, usage, message and the parts in `extra`."""
        body: dict[str, Any] = {"text": self.text, "usage": self.usage.as_dict(), "message": self.message}
        # A settle that is repeated asks for the text again, so `extra` stays as it is.
        body |= {key: [*map(dict, value)] if key == "candidates" else value for key, value in self.extra.items()}
        for each in (body, *body.get("candidates", ())):
            if each.get("logprobs"):
                each["logprobs"] = packed_logprobs.pack(each["logprobs"])
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class JobView:
    """One job as read from the store; every HTTP answer about a job is built from a JobView."""

    id: str
    tenant: str
    model: str
    state: JobState
    #: The next four fields are times by the store's TIME, in ms since the epoch; None if the job has not got that far.
    admitted_ms: int
    deadline_at_ms: int
    started_ms: int | None
    ended_ms: int | None
    deadline_ms: int
    deadline_source: str
    attempts: int
    cancel_requested: bool
    prompt_tokens: int
    max_tokens: int
    finish_reason: str
    code: str
    stage: str
    worker: str
    #: `text` and `usage` are part of the result: None until the job has ended, and after its text was erased.
    text: str | None
    usage: Usage | None
    message: str
    #: Position in the queue: 1 is the head. None if the job is not queued.
    position: int | None
    now_ms: int
    #: Time of the first claim. `waited` is computed from this time and from `head_ms`, the time at which the job first
    #: reached the head of its queue.
    first_claim_ms: int | None = None
    #: The sum of prompt tokens plus max_tokens over the jobs ahead of this one in its queue. None if this job is not
    #: queued, or if more than 64 jobs are ahead of it.
    ahead_tokens: int | None = None
    #: The job is canceled as abandoned if no client polls it for this long; 0 means never.
    poll_grace_ms: int = 0
    head_ms: int | None = None
    #: See WaitTimes: the sums up to the last pause and the last claim, and since when the job is paused, or is back in
    #: its queue; None if it is not.
    paused_ms: int = 0
    paused_since_ms: int | None = None
    requeued_ms: int = 0
    requeued_since_ms: int | None = None
    #: The predicted end, computed at admission; None if the rates were unknown then.
    eta_at_ms: int | None = None
    #: The changes that degradation made to the job at its last claim; empty if the job runs as requested.
    degraded: tuple[Change, ...] = ()
    #: Why the job was admitted with fewer passages than were found for it; "" if it has all of them.
    fewer: str = ""
    #: How the job was routed; None if its request named a pool.
    routed: Routed | None = None
    priority: int = 0
    #: The URL for the webhook of the job's end ("" for no webhook), and the webhook's state: see `webhook_json`.
    callback_url: str = ""
    webhook: str = ""
    #: The label of the API key that submitted the job; "" without one.
    key_label: str = ""
    #: Whether the job may run only in pools that an operator has marked as local.
    private: bool = False
    #: Whether the job's worker knows that somebody follows the text, or writes all of it at once in any case.
    is_followed: bool = True
    #: See JobRequest.form.
    form: dict[str, Any] = field(default_factory=dict)
    #: The fields of its JobRequest that the job's JSON shows.
    shown: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def metadata(self) -> dict[str, str]:
        values: dict[str, str] = self.shown.get("metadata", {})
        return values

    @property
    def waited(self) -> WaitTimes:
        """How long the job has waited. If it was never claimed, the wait is counted until its end, or until now."""
        until = self.first_claim_ms or self.ended_ms or self.now_ms
        head = min(until, self.head_ms or until)
        return WaitTimes(
            own_ms=max(0, head - self.admitted_ms),
            turn_ms=max(0, until - head),
            paused_ms=self.paused_ms + self._so_far_ms(self.paused_since_ms),
            requeued_ms=self.requeued_ms + self._so_far_ms(self.requeued_since_ms),
        )

    def _so_far_ms(self, since_ms: int | None) -> int:
        """Return the ms from a time to the job's end or, if it has not ended, to now; 0 without a time."""
        return 0 if since_ms is None else max(0, (self.ended_ms or self.now_ms) - since_ms)

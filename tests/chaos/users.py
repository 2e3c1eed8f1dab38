"""One user of a client process: sends jobs by all routes, follows them, and writes down what it is told."""

import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.answers import PROMPT
from tests.chaos.calls import Answer, Doors, Unreachable
from tests.chaos.ledger import ENDED, LedgerFile, ending_of

#: Refusals after which a user sends its request again; after any other, it does so only sometimes.
_TEMPORARY = {"store_unavailable", "no_worker", "draining"}
_MOST_ATTEMPTS = 8
#: How long a user waits for the end of a job; the judge waits for the rest.
_PATIENCE_S = 25.0


@dataclass
class Shared:
    """The state that the users of one client process share."""

    ledger: LedgerFile
    stopped: threading.Event
    #: (tenant, id) of acknowledged jobs, for attempts to read other tenants' jobs.
    known: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class _Sent:
    """A request that was acknowledged."""

    path: str
    body: dict[str, Any]
    key: str
    ref: str
    via: str


class User:
    """A user with a tenant, a key and a seeded sequence of actions."""

    def __init__(self, shared: Shared, tenant: str, doors: Doors, rng: random.Random, words: tuple[int, int]) -> None:
        self.shared, self.tenant, self.doors, self.rng, self._words = shared, tenant, doors, rng, words
        #: The newest requests that were acknowledged, to be repeated.
        self._earlier: deque[_Sent] = deque(maxlen=8)
        self.actions: dict[Callable[[], None], int] = {
            self.submit_and_poll: 6,
            self.submit_and_follow: 6,
            self.submit_and_wait: 2,
            self.submit_and_cancel: 1,
            self.submit_many: 1,
            self.run_in_background: 1,
            self.repeat_earlier: 3,
            self.snoop: 2,
        }

    def run(self) -> None:
        """Act until the run is stopped. An action that fails by itself is an anomaly."""
        while not self.shared.stopped.is_set():
            (action,) = self.rng.choices(list(self.actions), list(self.actions.values()))
            try:
                action()
            except Unreachable:
                time.sleep(self.rng.uniform(0.05, 0.3))
            except Exception as error:  # noqa: BLE001 - whatever it is, the report shows it
                self.write("anomaly", what=f"{action.__name__}: {error!r}")
            time.sleep(self.rng.uniform(0.0, 0.3))

    def write(self, event: str, **fields: Any) -> None:
        self.shared.ledger.write(event, tenant=self.tenant, **fields)

    # --- what a user does -------------------------------------------------------------------------------------------

    def submit_and_poll(self) -> None:
        job_id = self.submit("/v1/jobs", "jobs")
        if job_id:
            self.poll(job_id)

    def submit_and_wait(self) -> None:
        job_id = self.submit("/v1/jobs?wait_ms=4000", "jobs, wait")
        if job_id:
            self.poll(job_id)

    def submit_and_follow(self) -> None:
        job_id = self.submit("/v1/jobs", "jobs, events")
        if job_id:
            self.follow(job_id)
            self.poll(job_id)

    def submit_and_cancel(self) -> None:
        job_id = self.submit("/v1/jobs", "jobs, cancel")
        if job_id:
            time.sleep(self.rng.uniform(0.0, 1.0))
            self.write("canceled", id=job_id)
            self.doors.call("DELETE", f"/v1/jobs/{job_id}")
            self.poll(job_id)

    def submit_many(self) -> None:
        """Send more than the tenant may queue, each job once and without a key, so that another cell may take it."""
        for _ in range(16):
            self.submit_once("/v1/jobs", "jobs, burst")

    def run_in_background(self) -> None:
        body = {"input": PROMPT, "max_output_tokens": self.words(), "background": True, "priority": self.priority()}
        response_id = self.submit("/v1/responses", "responses, background", body)
        if response_id:
            self.poll(response_id)

    def repeat_earlier(self) -> None:
        """Send a request again that was acknowledged before: its key gets the same job, wherever the tenant lives."""
        if not self._earlier:
            return
        sent, since = self.rng.choice(self._earlier), time.monotonic()
        try:
            answer = self.doors.call("POST", sent.path, sent.body, Idempotency_Key=sent.key)
        except Unreachable:
            self.write("unknown", ref=sent.ref, key=sent.key)
            return
        if answer.refusal:
            self.write("refused", ref=sent.ref, key=sent.key, reason=answer.refusal)
        else:
            self._acknowledged(answer, since, sent.ref, sent.key, sent.via)

    def snoop(self) -> None:
        """Try to read, follow and cancel another tenant's job."""
        foreign = [(owner, job_id) for owner, job_id in self.shared.known[-200:] if owner != self.tenant]
        if not foreign:
            return
        owner, job_id = self.rng.choice(foreign)
        method, path = self.rng.choice([("GET", ""), ("GET", "/events"), ("DELETE", "")])
        answer = self.doors.call(method, f"/v1/jobs/{job_id}{path}")
        self.write("snoop", id=job_id, owner=owner, status=answer.status, reason=answer.refusal)

    # --- the steps of it --------------------------------------------------------------------------------------------

    def submit(self, path: str, via: str, body: dict[str, Any] | None = None) -> str | None:
        """Send one request, with an Idempotency-Key, until it is acknowledged or given up; return the job's id."""
        ref, key = uuid.UUID(int=self.rng.getrandbits(128)).hex, uuid.UUID(int=self.rng.getrandbits(128)).hex
        body = (body or self.job_body()) | {"metadata": {"ref": ref}}
        job_id = None
        for attempt in range(_MOST_ATTEMPTS):
            since = time.monotonic()
            try:
                answer = self.doors.call("POST", path, body, Idempotency_Key=key)
            except Unreachable:
                self.write("unknown", ref=ref, key=key)
                time.sleep(self.rng.uniform(0.1, 0.5))
                continue
            if answer.refusal:
                self.write("refused", ref=ref, key=key, reason=answer.refusal)
                if answer.refusal not in _TEMPORARY and self.rng.random() < 0.6:
                    return None
                time.sleep(self.rng.uniform(0.1, 0.6))
                continue
            job_id = self._acknowledged(answer, since, ref, key, via)
            if job_id is not None:
                self._earlier.append(_Sent(path, body, key, ref, via))
            # A client that has lost the answer sends the request again; nine of ten have not.
            if job_id is None or attempt or self.rng.random() < 0.9:
                return job_id
        return job_id

    def submit_once(self, path: str, via: str) -> None:
        """Send one request without an Idempotency-Key, and write down its answer."""
        ref, since = uuid.UUID(int=self.rng.getrandbits(128)).hex, time.monotonic()
        try:
            answer = self.doors.call("POST", path, self.job_body() | {"metadata": {"ref": ref}})
        except Unreachable:
            self.write("unknown", ref=ref, key=None)
            return
        if answer.refusal:
            self.write("refused", ref=ref, key=None, reason=answer.refusal)
        else:
            self._acknowledged(answer, since, ref, None, via)

    def _acknowledged(self, answer: Answer, since: float, ref: str, key: str | None, via: str) -> str | None:
        if answer.status == 404 and answer.body["error"]["code"] == "job_not_found":
            self.write("vanished", ref=ref, since=since)
            return None
        if answer.status not in {200, 202}:
            self.write("anomaly", what=f"{via}: {answer.status} {answer.body}", ref=ref)
            return None
        job_id = str(answer.body["id"]).removeprefix("resp_")
        self.acknowledge(job_id, since, ref, via, key=key)
        if answer.body.get("object") == "job":
            self.write("read", id=job_id, job=_facts(answer.body))
        return job_id

    def acknowledge(
        self, job_id: str, since: float, ref: str, via: str, *, key: str | None, owned: bool = False
    ) -> None:
        """Write down that the door has promised this job."""
        self.write("ack", id=job_id, since=since, ref=ref, key=key, via=via, owned=owned)
        self.shared.known.append((self.tenant, job_id))

    def job_body(self) -> dict[str, Any]:
        deadline_ms = self.rng.choice([4_000, 20_000, 20_000, 20_000])
        job = {"prompt": PROMPT, "max_tokens": self.words(), "deadline_ms": deadline_ms}
        return job | {"priority": self.priority()}

    def priority(self) -> int:
        """Return the priority of a job; one in six is batch work."""
        return self.rng.choice([-1, 0, 0, 0, 0, 1])

    def words(self) -> int:
        """Return the length of an answer; a quarter of them take longer than a stopped worker's lease."""
        shortest, longest = self._words
        return (
            self.rng.randint(longest, 3 * longest) if self.rng.random() < 0.25 else self.rng.randint(shortest, longest)
        )

    def read(self, job_id: str) -> dict[str, Any] | None:
        """Read a job; return it, or None if the door cannot read it at the moment or does not find it."""
        try:
            answer = self.doors.call("GET", f"/v1/jobs/{job_id}")
        except Unreachable:
            return None
        if answer.status == 200:
            self.write("read", id=job_id, job=_facts(answer.body))
            return answer.body
        if answer.status == 404:
            self.write("missing", id=job_id)
        elif answer.refusal is None:
            self.write("anomaly", what=f"read: {answer.status} {answer.body}", id=job_id)
        return None

    def poll(self, job_id: str) -> None:
        """Read a job until it has ended, and once more later."""
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            job = self.read(job_id)
            if job and job["status"] in ENDED:
                break
            time.sleep(self.rng.uniform(0.1, 0.4))
        time.sleep(self.rng.uniform(0.0, 0.3))
        self.read(job_id)

    def follow(self, job_id: str) -> None:
        """Follow a job's events to its end, resuming after the last event whenever the stream breaks."""
        text, tokens, last_id, until = "", 0, "", time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            headers = {"Last_Event_ID": last_id} if last_id else {}
            try:
                with self.doors.stream("GET", f"/v1/jobs/{job_id}/events", None, **headers) as events:
                    if isinstance(events, Answer):
                        if events.status == 404:
                            self.write("missing", id=job_id)
                            return
                        if events.refusal is None:
                            self.write("anomaly", what=f"events: {events.status} {events.body}", id=job_id)
                        time.sleep(0.2)
                        continue
                    for event in events:
                        last_id = event.id or last_id
                        if event.kind == "started":
                            text = self._text_kept(job_id, text, tokens, resumed=bool(event.data.get("resumed")))
                        elif event.kind == "token":
                            text, tokens = text + event.data["text"], event.data["tokens"]
                        elif event.kind == "ended":
                            self.write("stream", id=job_id, text=text, via="events", job=_facts(event.data))
                            return
            except Unreachable:
                time.sleep(self.rng.uniform(0.05, 0.3))

    def _text_kept(self, job_id: str, text: str, tokens: int, *, resumed: bool) -> str:
        """Return the text that stays when an attempt starts after `tokens` tokens were shown."""
        if text:
            self.write("started again", id=job_id, tokens=tokens, resumed=resumed)
        return text if resumed else ""


def _facts(job: dict[str, Any]) -> dict[str, Any]:
    """Return what the judge compares of a job's JSON."""
    return ending_of(job) | {"created_at": job["created_at"], "ref": job["metadata"].get("ref")}

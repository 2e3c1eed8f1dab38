"""Penstock itself in the simulation: the real store with its real scripts, called as door and workers call it.

What a run leaves out: HTTP, the engine's text (the event streams get no tokens), and the cost of RQ's record
of a worker. Everything that admits, orders, claims, renews, settles, cancels and reaps is the code of `shared`.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from typing import Any

import redis

from bench.sim.asks import TAKEN, Answer, Ask
from bench.sim.clock import VirtualTimeClient
from bench.sim.fleet import Sequence, SimWorker
from bench.sim.system import Grant
from shared.jobs.job import Ending, Held, NewJob, Usage
from shared.jobs.outcomes import Outcome, Refused
from shared.settings.settings import Settings, load
from shared.store import keys
from shared.store.keys import model_slug
from shared.store.replies import Admitted, Beat, SettleAnswer
from shared.store.store import Store
from web.api.deadline import RequestDeadline
from web.api.refusals import to_yield

MODEL = "modelled"


class Ours:
    """The store between clients and workers, in virtual time."""

    name = "ours"
    slug = model_slug(MODEL)

    def __init__(self, client: redis.Redis, environ: Mapping[str, str] | None = None) -> None:
        self.client = VirtualTimeClient.over(client)
        self.store = Store(self.client)
        self.settings: Settings = load(dict(environ or {}), None)
        self.store.configure(self.settings)
        self._by_id: dict[str, Ask] = {}
        self._ids: dict[Ask, str] = {}
        self._claims = 0

    def offer(self, ask: Ask, now_ms: float, then: Callable[[Answer], None]) -> None:
        """Admit or refuse."""
        self.client.now_ms = now_ms
        self.client.put_off(lambda: then(self._admit(ask)))

    def catch_up(self) -> None:
        """Send what was put off."""
        self.client.flush()

    def _admit(self, ask: Ask) -> Answer:
        job_id = f"a{ask.number}x{ask.attempts}"
        job = NewJob(
            id=job_id,
            tenant=ask.tenant,
            model=MODEL,
            payload={"max_tokens": ask.max_tokens},
            prompt_tokens=ask.prompt,
            max_tokens=ask.max_tokens,
            deadline_ms=ask.deadline_ms,
            # Where the system degrades, every tenant has opted in.
            degrade=self.settings.degradation == "on",
        )
        answer = self.store.admit(job, attempt=ask.attempts - 1)
        if isinstance(answer, Admitted):
            self._by_id[job_id] = ask
            self._ids[ask] = job_id
            return TAKEN
        assert isinstance(answer, Refused), answer
        # What the client is told is the door's own answer; its patience is what its body names.
        told = to_yield(answer, tenant=ask.tenant, model=MODEL, deadline=RequestDeadline(ask.deadline_ms, "body"))
        worth = told.headers.get("x-should-retry") != "false"
        return Answer(taken=False, reason=answer.reason.value, hint_ms=answer.retry_hint_ms, worth_retrying=worth)

    def claim(self, worker: SimWorker, now_ms: float) -> list[Grant]:
        """One call for all free slots."""
        self.client.now_ms = now_ms
        self._claims += 1
        got = self.store.claim(
            worker.name, f"c{self._claims}", MODEL, room=worker.room, cells_free=max(0, worker.cells_free)
        )
        for job in got:
            self._cut(self._by_id[job.id], job.max_tokens)
        return [
            Grant(
                self._by_id[job.id],
                job.token,
                now_ms + job.deadline_in_ms,
                None if job.start_in_ms is None else now_ms + job.start_in_ms,
            )
            for job in got
        ]

    @staticmethod
    def _cut(ask: Ask, max_tokens: int) -> None:
        """An answer ends by itself or at the length that this claim allows."""
        whole = ask.answer + ask.cut_tokens
        ask.answer = min(whole, max_tokens)
        ask.cut_tokens = whole - ask.answer

    def settle(
        self, worker: SimWorker, seq: Sequence, outcome: str, now_ms: float, then: Callable[[str], None]
    ) -> None:
        """With the true counts."""
        self.client.now_ms = now_ms
        self.client.put_off(lambda: then(self._settle(worker, seq, outcome, now_ms)))

    def _settle(self, worker: SimWorker, seq: Sequence, outcome: str, now_ms: float) -> str:
        first_ms = seq.first_ms
        usage = Usage(
            prompt_tokens=seq.ask.prompt - seq.prompt_left,
            completion_tokens=worker.generated(seq),
            ttft_ms=None if first_ms is None else int(first_ms - seq.claimed_ms),
            decode_ms=None if first_ms is None else int(now_ms - first_ms),
        )
        ending = Ending(
            self._ids[seq.ask],
            seq.token,
            Outcome(outcome),
            finish_reason={"succeeded": "stop", "expired": "deadline", "canceled": "canceled"}[outcome],
            code={"succeeded": "", "expired": "deadline_exceeded", "canceled": "canceled"}[outcome],
            usage=usage,
        )
        settled = self.store.settle(ending, worker.name)
        if settled.answer in {SettleAnswer.LOST, SettleAnswer.GONE} or settled.outcome is None:
            return ""
        return settled.outcome.value

    def leave(self, ask: Ask, now_ms: float) -> bool:
        """DELETE; a running job's holder hears its bell."""
        self.client.now_ms = now_ms
        return ask in self._ids and self.store.cancel(self._ids[ask]).value == "requested"

    def beat(self, worker: SimWorker, now_ms: float) -> list[Ask]:
        """Renew what the worker holds; what it lost or must stop."""
        self.client.now_ms = now_ms
        held = [Held(self._ids[ask], seq.token) for ask, seq in worker.sequences.items()]
        machine = worker.machine
        answer = self.store.renew(
            Beat(
                worker.name,
                MODEL,
                machine.slots,
                len(worker.sequences),
                machine.cells,
                max(0, worker.cells_free),
                facts=worker.rates.as_facts(),
            ),
            held,
        )
        return [self._by_id[job_id] for job_id in (*answer.lost, *answer.canceled)]

    def reap(self, now_ms: float) -> bool:
        """Until nothing more is due."""
        self.client.now_ms = now_ms
        came_back = False
        while (reaped := self.store.reap()).moved:
            came_back = came_back or reaped.requeued > 0
        return came_back

    def waiting(self) -> int:
        """By the store's own set of waiting jobs."""
        size: Any = self.client.zcard(keys.deadlines())
        return int(size)

    def close(self, asks: Several[Ask]) -> None:
        """Read how the jobs ended that no worker settled."""
        open_asks = [ask for ask in asks if not ask.outcome and ask in self._ids]
        pipe = self.client.pipeline(transaction=False)
        for ask in open_asks:
            pipe.hmget(keys.rq_job(self._ids[ask]), "penstock_state", "penstock_ended_ms")
        for ask, (state, _) in zip(open_asks, pipe.execute(), strict=True):
            if state not in {b"queued", b"running", None}:
                ask.outcome = state.decode()
        self.client.done()

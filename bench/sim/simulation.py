"""The discrete events of one run: sends, steps, heartbeats, the reaper, clients that leave, workers that are lost.

Time is a number that jumps from event to event. Neither the network nor the door takes time here; a claim is
made at a step's end and runs in the next step; an idle worker is woken by the admission.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bench.sim.asks import Answer, Ask
from bench.sim.clients import Client
from bench.sim.fleet import Machine, Sequence, SimWorker
from bench.sim.system import System

#: How often a worker beats: min(lease / 3, 1 s).
BEAT_MS = 1_000.0
#: How often somebody reaps: what is late is found this late at most.
REAP_MS = 250.0
#: From a DELETE at the door to the engine: the contract's most.
BELL_MS = 50.0
#: How long an answer may be put off: less than the shortest hint, so that nobody is late to come back.
CATCH_UP_MS = 25.0


@dataclass
class Departure:
    """One client that left while its job ran: what that cost."""

    #: Steps that ended between the engine's knowing and the slot's being free.
    steps: int = 0
    dead_tokens: int = 0
    in_prompt: bool = False


@dataclass
class Run:
    """What a run leaves behind, for the ledger."""

    asks: list[Ask]
    workers: list[SimWorker]
    seconds: float
    attempts: int = 0
    departures: list[Departure] = field(default_factory=list)
    #: Weighted tokens computed by all workers up to each whole second.
    computed_by_s: list[int] = field(default_factory=list)


class Simulation:
    """One system, one fleet, one plan of asks. Made for one run."""

    def __init__(
        self, system: System, asks: list[Ask], *, client: Client, seconds: float, seed: int, workers: list[SimWorker]
    ) -> None:
        self.system, self.client, self.end_ms = system, client, seconds * 1_000
        self.rng = np.random.default_rng([seed, 3])
        self.result = Run(asks, workers, seconds)
        self._events: list[tuple[float, int, Callable[[float, object], None], object]] = []
        self._count = 0
        self._idle: dict[str, SimWorker] = {worker.name: worker for worker in workers}
        #: Where a claimed ask runs; its tokens when its client left.
        self._holder: dict[Ask, SimWorker] = {}
        self._left_at_tokens: dict[Ask, int] = {}
        self._told_at_step: dict[Ask, int] = {}
        #: Grows whenever something new waits; a worker whose claim came back short asks again only then.
        self._news = 0
        self._seen = {worker.name: -1 for worker in workers}

    def at(self, when_ms: float, what: Callable[[float, object], None], about: object = None) -> None:
        """Something that will happen."""
        self._count += 1
        heapq.heappush(self._events, (when_ms, self._count, what, about))

    def run(self) -> Run:
        """Until the end; then the asks carry what became of them."""
        for i, worker in enumerate(self.result.workers):
            self.at(i * 1e-3, self._beat, worker)
        self.at(REAP_MS, self._reap)
        self.at(1_000, self._second)
        self.at(CATCH_UP_MS, self._catch_up)
        asks, next_up, events = self.result.asks, 0, self._events
        while True:
            sends_ms = asks[next_up].at_ms if next_up < len(asks) else float("inf")
            if events and events[0][0] <= sends_ms:
                now_ms, _, what, about = heapq.heappop(events)
                if now_ms > self.end_ms:
                    break
                what(now_ms, about)
            elif sends_ms <= self.end_ms:
                self._send(sends_ms, asks[next_up])
                next_up += 1
            else:
                break
        self.system.catch_up()
        self.system.close(asks)
        return self.result

    def lose(self, now_ms: float, worker: object) -> None:  # noqa: ARG002 - an event's form
        """The worker's machine goes dark; its leases will lapse."""
        assert isinstance(worker, SimWorker)
        for ask in worker.sequences:
            self._holder.pop(ask, None)
        worker.lose_everything()
        self._idle.pop(worker.name, None)

    def bring_back(self, now_ms: float, worker: object) -> None:
        """It starts again, with nothing."""
        assert isinstance(worker, SimWorker)
        worker.alive = True
        self._seen[worker.name] = -1
        self._beat(now_ms, worker)
        self._turn(now_ms, worker)

    def stop(self) -> None:
        """Nothing that is to come matters any more."""
        self.end_ms = -1.0

    # Clients.

    def _send(self, now_ms: float, about: object) -> None:
        assert isinstance(about, Ask)
        ask = about
        ask.attempts += 1
        ask.sent_ms = now_ms
        self.result.attempts += 1
        self.system.offer(ask, now_ms, lambda answer: self._answered(now_ms, ask, answer))
        if self._idle:
            self.system.catch_up()
            if self._idle and self._may_claim(worker := next(iter(self._idle.values()))):
                self._turn(now_ms, worker)

    def _answered(self, sent_ms: float, ask: Ask, answer: Answer) -> None:
        if answer.taken:
            ask.admitted_ms = sent_ms
            self._news += 1
            if ask.leaves_after_ms is not None:
                self.at(sent_ms + ask.leaves_after_ms, self._leave, ask)
            return
        ask.refusal = answer.reason
        wait_ms = self.client.comes_back_after(ask, answer, sent_ms, self.rng)
        if wait_ms is None:
            ask.gave_up_ms = sent_ms
        else:
            self.at(sent_ms + wait_ms, self._send, ask)

    def _leave(self, now_ms: float, about: object) -> None:
        assert isinstance(about, Ask)
        if about.outcome:
            return
        about.gone = True
        worker = self._holder.get(about)
        if worker is not None:
            self._left_at_tokens[about] = worker.tokens_so_far(worker.sequences[about])
        if self.system.leave(about, now_ms):
            self.at(now_ms + BELL_MS, self._ring, about)

    def _ring(self, now_ms: float, about: object) -> None:  # noqa: ARG002 - an event's form
        assert isinstance(about, Ask)
        worker = self._holder.get(about)
        if worker is not None:
            worker.cancel(about)
            self._told_at_step[about] = worker.steps

    # Workers.

    def _turn(self, now_ms: float, worker: SimWorker) -> None:
        """Between two steps: what is over goes, free slots are filled, the next step begins."""
        self._idle.pop(worker.name, None)
        for seq, outcome in worker.sweep(now_ms):
            self._end(now_ms, worker, seq, outcome)
        if worker.room:
            self.system.catch_up()
        if worker.room and self._may_claim(worker):
            room = worker.room
            grants = self.system.claim(worker, now_ms)
            for grant in grants:
                grant.ask.claimed_ms = now_ms
                self._holder[grant.ask] = worker
                worker.take(grant.ask, grant.token, now_ms, grant.deadline_at_ms, grant.start_by_ms)
            if len(grants) < room and not (self.system.waiting() and worker.sequences):
                self._seen[worker.name] = self._news
        took_ms = worker.begin_step()
        if took_ms:
            self.at(now_ms + took_ms, self._step, (worker, worker.life))
        else:
            self._idle[worker.name] = worker

    def _may_claim(self, worker: SimWorker) -> bool:
        return self._seen[worker.name] != self._news

    def _step(self, now_ms: float, about: object) -> None:
        worker, life = about  # type: ignore[misc]  # a pair, made in _turn
        if not worker.alive or worker.life != life:
            return
        for seq in worker.end_step(now_ms):
            self._end(now_ms, worker, seq, "succeeded")
        self._turn(now_ms, worker)

    def _end(self, now_ms: float, worker: SimWorker, seq: Sequence, outcome: str) -> None:
        ask = seq.ask
        self._holder.pop(ask, None)
        self.system.settle(worker, seq, outcome, now_ms, lambda ended: self._settled(now_ms, worker, seq, ended))

    def _settled(self, now_ms: float, worker: SimWorker, seq: Sequence, ended: str) -> None:
        ask = seq.ask
        if not ended:
            return
        ask.outcome, ask.ended_ms = ended, now_ms
        if ask.first_token_ms is None:
            ask.first_token_ms = seq.first_ms
        if ask in self._left_at_tokens:
            ask.dead_tokens = worker.tokens_so_far(seq) - self._left_at_tokens.pop(ask)
            steps = seq.over_at_step - self._told_at_step.pop(ask, seq.over_at_step)
            self.result.departures.append(Departure(steps, ask.dead_tokens, seq.first_ms is None))

    def _beat(self, now_ms: float, worker: object) -> None:
        assert isinstance(worker, SimWorker)
        if not worker.alive:
            return
        for ask in self.system.beat(worker, now_ms):
            worker.cancel(ask)
        self.at(now_ms + BEAT_MS, self._beat, worker)

    def _reap(self, now_ms: float, _: object) -> None:
        if self.system.reap(now_ms):
            self._news += 1
            for worker in list(self._idle.values()):
                self._turn(now_ms, worker)
        self.at(now_ms + REAP_MS, self._reap)

    def _catch_up(self, now_ms: float, _: object) -> None:
        self.system.catch_up()
        self.at(now_ms + CATCH_UP_MS, self._catch_up)

    def _second(self, now_ms: float, _: object) -> None:
        self.result.computed_by_s.append(sum(worker.computed_wt for worker in self.result.workers))
        self.at(now_ms + 1_000, self._second)


def fleet(count: int = 4, machine: Machine | None = None, *, heeds_deadlines: bool = True) -> list[SimWorker]:
    """Workers of one kind."""
    return [SimWorker(f"w{i}", machine or Machine(), heeds_deadlines=heeds_deadlines) for i in range(count)]

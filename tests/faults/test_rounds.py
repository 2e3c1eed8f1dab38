"""The rounds of one worker in one thread, with a real store, a real engine over sim, and a clock held here."""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from shared import keys, scripts
from shared.clock import HeldClock
from shared.config import Settings, load
from shared.errors import StoreUnavailable
from shared.job import Held
from shared.states import JobState
from shared.store import Store
from tests.support.builders import a_beat, a_job, admitted
from workers.delivery import Delivery
from workers.engine.factory import make_engine
from workers.holding import Holding
from workers.intake import Intake
from workers.rounds import Rounds

WORKER, MODEL = "w1", "sim"


class Flaky(Store):
    """The real store behind a line that is cut before a call, or after it so that its answer is lost."""

    away = False
    swallow = ""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        #: What was called: the script's name, and the job's id where it is about one.
        self.calls: list[tuple[str, str]] = []

    def _call(self, script: str, **given: scripts.Value | Sequence[scripts.Value]) -> tuple[str, list[Any]]:
        if self.away:
            raise StoreUnavailable("the line is cut")
        self.calls.append((script, str(given.get("id", ""))))
        answer = super()._call(script, **given)
        if script == self.swallow:
            self.swallow = ""
            raise StoreUnavailable("the answer is lost")
        return answer

    def _call_many(self, script: str, calls: Sequence[scripts.Call]) -> list[tuple[str, list[Any]] | Exception]:
        if self.away:
            raise StoreUnavailable("the line is cut")
        self.calls += [(script, str(given["id"])) for given in calls]
        answers = super()._call_many(script, calls)
        if script == self.swallow:
            self.swallow = ""
            raise StoreUnavailable("the answer is lost")
        return answers


class OneWorker:
    """Delivery, intake and engine of a worker; `beat` makes it live."""

    def __init__(self, store: Flaky, settings: Settings) -> None:
        self.store, self.clock, self.holding = store, HeldClock(), Holding()
        self.delivery = Delivery(store, WORKER, self.holding, self.clock)
        self.engine = make_engine(settings, self.delivery.emit, clock=self.clock)
        self.engine.backend._sleep = self.clock.advance
        self.delivery.drop = lambda key: self.engine.cancel(key, drop=True)
        self.intake = Intake(
            store, WORKER, MODEL, holding=self.holding, engine=self.engine, clock=self.clock, fail=self.delivery.fail
        )
        self.intake.paused = False
        self.rounds = Rounds(self.delivery, self.intake, clock=self.clock, on_room=lambda: None)
        self.beat()

    def beat(self) -> list[str]:
        return self.store.renew(a_beat(WORKER, slots=8, model=MODEL), self.holding.named()).lost

    def go(self, until: Callable[[], bool]) -> None:
        """Rounds and steps in turn, until so."""
        for _ in range(5_000):
            if until():
                return
            self.rounds.one_pass()
            self.engine.step()
        raise AssertionError("5000 rounds were not enough")

    def all_ended(self) -> bool:
        return self.store.client.zcard(keys.inflight()) == 0


@pytest.fixture
def flaky(redis_client) -> Flaky:
    return Flaky(redis_client)


def make(flaky: Flaky, **environ: str) -> OneWorker:
    plain = {"PENSTOCK_ENGINE": "sim", "PENSTOCK_ADMISSION": "bounds", "PENSTOCK_MAX_BATCH_SIZE": "1"}
    settings = load(environ=plain | environ, dotenv=None)
    flaky.configure(settings)
    return OneWorker(flaky, settings)


def ask(store: Store, tenant: str = "blue", **spelled: Any) -> str:
    return admitted(store, a_job(tenant, **({"model": MODEL, "payload": {"prompt": "a b c"}} | spelled)))


def state(store: Store, job_id: str) -> tuple[JobState, int]:
    view = store.touch(job_id, quiet=True)
    assert view is not None
    return view.state, view.attempts


def test_equal_jobs_of_three_tenants_take_exact_turns_in_one_slot(flaky):
    worker = make(flaky)
    ids = {ask(flaky, tenant, max_tokens=3): tenant for tenant in "aaabbbccc"}
    worker.go(worker.all_ended)
    views = sorted((flaky.touch(job_id) for job_id in ids), key=lambda view: (view.first_claim_ms, view.ended_ms))
    assert "".join(view.tenant for view in views) == "abcabcabc"


def test_a_slot_takes_no_new_job_before_the_end_of_its_former_one_is_written(flaky):
    worker = make(flaky)
    first, second = ask(flaky, max_tokens=2), ask(flaky, max_tokens=2)
    worker.go(lambda: len(worker.holding) == 1)
    while worker.engine.room().slots == 0:
        worker.engine.step()
    assert not worker.intake.has_room
    assert state(flaky, second) == (JobState.QUEUED, 0)
    worker.go(worker.all_ended)
    assert state(flaky, first) == state(flaky, second) == (JobState.SUCCEEDED, 1)


def test_without_a_store_the_engine_goes_on_and_ends_are_told_in_their_order_when_it_is_back(flaky):
    worker = make(flaky, PENSTOCK_MAX_BATCH_SIZE="3")
    long, short, middle = (ask(flaky, tenant, max_tokens=most) for tenant, most in (("a", 30), ("b", 10), ("c", 20)))
    behind = ask(flaky, "d", max_tokens=5)
    worker.go(lambda: len(worker.holding) == 3)
    flaky.away = True
    while worker.engine.room().slots < 3:
        with contextlib.suppress(StoreUnavailable):
            worker.rounds.one_pass()
        worker.engine.step()
    assert worker.engine.stats.completion_tokens == 60
    assert len(worker.holding) == 3
    flaky.calls.clear()
    flaky.away = False
    assert state(flaky, behind) == (JobState.QUEUED, 0)
    worker.go(worker.all_ended)
    told = [call for call in flaky.calls if call[0] in {"settle", "claim"}]
    assert told[:5] == [("settle", short), ("settle", middle), ("settle", long), ("claim", ""), ("settle", behind)]
    assert {state(flaky, job_id) for job_id in (long, short, middle, behind)} == {(JobState.SUCCEEDED, 1)}


def test_a_claim_whose_answer_was_lost_is_asked_again_and_gives_the_same_jobs(flaky):
    worker = make(flaky, PENSTOCK_MAX_BATCH_SIZE="4")
    ids = [ask(flaky, tenant, max_tokens=2) for tenant in "abc"]
    flaky.swallow = "claim"
    with pytest.raises(StoreUnavailable):
        worker.rounds.one_pass()
    assert worker.intake.asking
    assert not len(worker.holding)
    late = ask(flaky, "d", max_tokens=2)
    worker.rounds.one_pass()
    assert sorted(held.id for held in worker.holding.named()) == sorted(ids)
    worker.go(worker.all_ended)
    assert {state(flaky, job_id) for job_id in [*ids, late]} == {(JobState.SUCCEEDED, 1)}


def test_a_settle_whose_answer_was_lost_counts_once(flaky):
    worker = make(flaky)
    job_id = ask(flaky, max_tokens=2)
    flaky.swallow = "settle"
    with pytest.raises(StoreUnavailable):
        worker.go(worker.all_ended)
    assert len(worker.holding) == 1
    worker.rounds.one_pass()
    assert not len(worker.holding)
    assert [call for call in flaky.calls if call[0] == "settle"] == [("settle", job_id)] * 2
    assert state(flaky, job_id) == (JobState.SUCCEEDED, 1)
    assert flaky.snapshot().stats["ended|succeeded"] == 1


def test_a_claim_that_is_answered_after_the_drain_began_is_given_back(flaky):
    worker = make(flaky)
    job_id = ask(flaky)
    flaky.swallow = "claim"
    with pytest.raises(StoreUnavailable):
        worker.rounds.one_pass()
    assert state(flaky, job_id) == (JobState.RUNNING, 1)
    worker.intake.closed = True
    worker.rounds.one_pass()
    assert state(flaky, job_id) == (JobState.QUEUED, 0)
    assert not worker.intake.asking


def test_the_first_text_goes_out_at_once_and_then_no_oftener_than_every_50_ms(flaky):
    """Two slots, a word every 10 ms."""
    worker = make(flaky, PENSTOCK_MAX_BATCH_SIZE="2", PENSTOCK_SIM_DECODE_TPS="100", PENSTOCK_SIM_PREFILL_TPS="1e6")
    ids = [ask(flaky, tenant, max_tokens=40) for tenant in "ab"]
    told: dict[str, list[float]] = {job_id: [] for job_id in ids}
    calls = []
    append = flaky.append

    def watched(chunks: Sequence[tuple[Held, str, int]]) -> list[str]:
        calls.append(len(chunks))
        for held, _, _ in chunks:
            told[held.id].append(worker.clock.monotonic())
        return append(chunks)

    flaky.append = watched
    worker.go(worker.all_ended)
    for moments in told.values():
        gaps = [after - before for before, after in itertools.pairwise(moments)]
        assert len(moments) >= 7
        # The last call is the end's.
        assert min(gaps[:-1]) >= 0.045
        assert max(gaps) <= 0.115
    assert sum(size == 2 for size in calls) >= 5
    for job_id in ids:
        events = flaky.read_events({job_id: "0"}, block_ms=1)[job_id]
        assert "".join(fields.get("text", "") for _, fields in events) == flaky.touch(job_id).text


def test_text_that_was_in_doubt_when_its_job_ended_is_told_before_the_end(flaky):
    worker = make(flaky)
    job_id = ask(flaky, max_tokens=6)
    worker.go(lambda: worker.engine.stats.completion_tokens == 1)
    flaky.away = True
    with pytest.raises(StoreUnavailable):
        worker.rounds.one_pass()
    while worker.engine.room().slots == 0:
        worker.engine.step()
    flaky.away = False
    worker.go(worker.all_ended)
    events = flaky.read_events({job_id: "0"}, block_ms=1)[job_id]
    assert [fields["type"] for _, fields in events] == ["started", "token", "token", "ended"]
    assert "".join(fields.get("text", "") for _, fields in events) == flaky.touch(job_id).text


def test_text_for_a_lease_that_was_lost_drops_the_sequence(flaky):
    worker = make(flaky)
    job_id = ask(flaky, max_tokens=1_000)
    worker.go(lambda: worker.engine.stats.completion_tokens > 3)
    flaky.release(WORKER, worker.holding.named())
    worker.intake.paused = True
    worker.go(lambda: not len(worker.holding))
    worker.go(lambda: worker.engine.room().slots == 1)
    assert state(flaky, job_id) == (JobState.QUEUED, 0)
    flaky.cancel(job_id)


def test_a_job_that_comes_back_to_the_worker_that_lost_it_runs_as_its_new_attempt(flaky):
    worker = make(flaky, PENSTOCK_MAX_BATCH_SIZE="2")
    job_id = ask(flaky, max_tokens=10)
    worker.go(lambda: len(worker.holding) == 1)
    old = worker.holding.named()
    flaky.release(WORKER, old)
    worker.intake.ring()
    worker.rounds.one_pass()
    new = worker.holding.named()
    assert [held.id for held in new] == [job_id]
    assert new != old
    assert worker.beat() == []
    worker.go(worker.all_ended)
    assert state(flaky, job_id) == (JobState.SUCCEEDED, 1)
    assert worker.engine.room().slots == 2


def test_a_cancel_that_overtakes_its_claims_answer_is_kept_for_it(flaky):
    worker = make(flaky)
    job_id = ask(flaky, max_tokens=1_000)
    flaky.swallow = "claim"
    with pytest.raises(StoreUnavailable):
        worker.rounds.one_pass()
    flaky.cancel(job_id)
    _, heard = flaky.wait_for_work(WORKER, "", timeout_s=1)
    assert [worker.holding.ask_cancel(job_id) for job_id in heard] == [None]
    worker.go(worker.all_ended)
    assert state(flaky, job_id) == (JobState.CANCELED, 1)
    assert worker.engine.stats.completion_tokens <= 1


def test_a_full_worker_asks_for_nothing(flaky):
    worker = make(flaky)
    ids = [ask(flaky, max_tokens=50) for _ in range(2)]
    worker.go(lambda: len(worker.holding) == 1)
    flaky.calls.clear()
    worker.go(lambda: worker.engine.stats.completion_tokens == 40)
    assert {script for script, _ in flaky.calls} == {"append"}
    worker.go(worker.all_ended)
    assert {state(flaky, job_id)[0] for job_id in ids} == {JobState.SUCCEEDED}

"""Tests of the usage of a day: it is what clients were told about their jobs, however these ended."""

import random
from datetime import date, timedelta

import pytest

from shared.accounts.usage import OTHER, Amounts, UsageRecords, days_between, sum_by
from shared.jobs.job import JobView, Usage, new_job_id
from shared.jobs.outcomes import Outcome
from shared.jobs.states import JobState
from shared.store import keys
from tests.support.answers import FINGERPRINT, Answer
from tests.support.builders import a_heartbeat, a_job, admitted, an_ending, claim_one, heartbeat, pass_time, view_of
from tests.support.routed import SPENT_KEYS, a_route, serve, set_terms, to

LABELS = ("", "ci", "50% | off")
MODELS = ("m", "small", "big")


def used(store, *dimensions):
    """Return the sums of all usage by these dimensions."""
    book = UsageRecords(store.client)
    today = book.today()
    return sum_by(dimensions, book.read(days_between(today - timedelta(days=2), today + timedelta(days=2))))


def told(view: JobView) -> Amounts:
    """Return what a client is told about an ended job."""
    usage = view.usage or Usage()
    tokens = usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
    return Amounts(**{view.state.value: 1}) + Amounts(0, 0, 0, 0, *tokens)


class Ends:
    """Brings jobs to their ends in every way, with random token counts."""

    def __init__(self, store, seed: int) -> None:
        self.store, self._random = store, random.Random(seed)
        self._route = a_route(store, "small", "big")
        #: Further jobs that have ended, with the labels of their keys.
        self.extra: list[tuple[str, str]] = []

    def beat(self) -> None:
        """Send a heartbeat of every worker."""
        serve(self.store, "small", "big")
        for worker in ("w1", "w2"):
            self.store.renew(a_heartbeat(worker, facts={"fingerprint": FINGERPRINT}), [])

    def usage(self, kept: int = 0) -> Usage:
        prompt = self._random.randint(1, 300)
        unread = self._random.choice([0, 0, prompt // 2])
        cached = self._random.randint(0, prompt - unread)
        return Usage(prompt, cached, kept + self._random.randint(0, 20 - kept), 5, 100, 7, unread_tokens=unread)

    def one(self, tenant: str, label: str) -> tuple[str, str]:
        """Run one job to its end. Return its id and the label of its key."""
        self.beat()
        way = self._random.choice([name for name in dir(self) if name.startswith("end_")])
        job_id = getattr(self, way)(tenant, label)
        assert view_of(self.store, job_id).ended_ms is not None, way
        return job_id, label

    def admit(self, tenant: str, label: str, **fields) -> str:
        return admitted(self.store, a_job(tenant, key_label=label, **fields))

    def running(self, tenant: str, label: str):
        self.admit(tenant, label)
        return claim_one(self.store)

    def end_settled(self, tenant: str, label: str) -> str:
        job = self.running(tenant, label)
        ending = an_ending(job.held, self._random.choice(list(Outcome)), usage=self.usage())
        for _ in range(2):
            self.store.settle(ending, "w1")
        return job.id

    def end_canceled_in_its_queue(self, tenant: str, label: str) -> str:
        job_id = self.admit(tenant, label)
        self.store.cancel(job_id)
        return job_id

    def end_superseded(self, tenant: str, label: str) -> str:
        job_id = self.admit(tenant, label, supersede_digest=f"{tenant}{label}")
        newer = self.admit(tenant, "", supersede_digest=f"{tenant}{label}")
        self.store.cancel(newer)
        self.extra.append((newer, ""))
        return job_id

    def end_canceled_while_it_runs(self, tenant: str, label: str) -> str:
        job = self.running(tenant, label)
        self.store.cancel(job.id)
        self.store.settle(an_ending(job.held, usage=self.usage()), "w1")
        return job.id

    def end_expired_in_its_queue(self, tenant: str, label: str) -> str:
        job_id = self.admit(tenant, label, deadline_ms=2_000)
        pass_time(self.store, 3_000)
        self.store.reap()
        return job_id

    def end_given_up(self, tenant: str, label: str) -> str:
        job_id = self.admit(tenant, label, deadline_ms=3_600_000)
        for _ in range(3):
            claim_one(self.store)
            pass_time(self.store, 16_000)
            self.store.reap()
            self.beat()
        return job_id

    def end_after_a_lost_attempt(self, tenant: str, label: str) -> str:
        lost = self.running(tenant, label)
        self.store.release("w1", [lost.held])
        self.store.account([(lost.held, self.usage())], "w1")
        job = claim_one(self.store, "w2")
        self.store.settle(an_ending(job.held, usage=self.usage()), "w2")
        return job.id

    def end_resumed(self, tenant: str, label: str) -> str:
        lost = self.running(tenant, label)
        Answer(self.store, lost).goes_on("Once", [5, 6, 7])
        self.store.release("w1", [lost.held])
        self.store.account([(lost.held, Usage(10, 0, 3))], "w1")
        job = claim_one(self.store, "w2")
        assert len(job.answer) == 3
        self.store.settle(an_ending(job.held, usage=self.usage(kept=3)), "w2")
        return job.id

    def end_moved(self, tenant: str, label: str) -> str:
        job_id = admitted(self.store, to(self._route, tenant, escalates=True, key_label=label))
        for model in ("small", "big"):
            (job,) = self.store.claim(f"worker-of-{model}", new_job_id(), model, room=1, cells_free=10**6)
            ending = an_ending(job.held, usage=self.usage())
            if model == "small":
                assert self.store.escalate(ending) == "big"
        self.store.settle(ending, "worker-of-big")
        return job_id


@pytest.mark.parametrize("seed", range(3))
def test_the_sums_are_what_clients_were_told_by_tenant_key_and_model(store, seed):
    for model in MODELS:
        set_terms(store, model, prompt_price_micro=1_000, answer_price_micro=3_000)
    ends, chosen = Ends(store, seed), random.Random(seed)
    ended = [ends.one(chosen.choice(["blue", "red"]), chosen.choice(LABELS)) for _ in range(60)] + ends.extra
    expected: dict[tuple[str, ...], Amounts] = {}
    for job_id, label in ended:
        view = view_of(store, job_id)
        series = view.tenant, label, view.model
        expected[series] = expected.get(series, Amounts()) + told(view)

    found = used(store, "tenant", "key", "model")
    without_costs = {series: Amounts(*list(vars(amounts).values())[:-1]) for series, amounts in found.items()}
    assert {series: sums for series, sums in without_costs.items() if sums != Amounts()} == expected
    assert {view_of(store, job_id).state for job_id, _ in ended} == {JobState(outcome) for outcome in Outcome}
    # The amount spent in each pool counts for the day of the admission; this is the sum over all days.
    spent = [store.client.hgetall(key) for key in store.client.keys(SPENT_KEYS)]
    for (model,), amounts in used(store, "model").items():
        assert amounts.cost_micro == sum(int(day.get(model.encode(), 0)) for day in spent)
    assert UsageRecords(store.client).find_gaps() == []


def test_a_job_counts_on_the_day_on_which_it_ends_and_the_day_is_kept_for_400_days(store):
    midnight_ms = 1_800_057_600_000
    store.client.set(keys.clock(), f"={midnight_ms - 1_000}")
    heartbeat(store)
    admitted(store, a_job())
    job = claim_one(store)
    store.client.set(keys.clock(), f"={midnight_ms + 1_000}")
    store.settle(an_ending(job.held), "w1")
    book = UsageRecords(store.client)
    assert book.today() == date(2027, 1, 16)
    assert store.client.keys(keys.usage("*")) == [keys.usage("2027-01-16").encode()]
    assert store.client.ttl(keys.usage("2027-01-16")) == 401 * 86_400
    (row,) = book.read_day(book.today(), "blue")
    assert (row.model, row.amounts) == ("m", Amounts(succeeded=1, prompt_tokens=10, completion_tokens=20))
    assert book.read_day(book.today(), "blu") == book.read_day(date(2027, 1, 15)) == []


def test_what_would_be_one_series_too_many_is_counted_as_other(store):
    heartbeat(store)
    day = keys.usage(UsageRecords(store.client).today().isoformat())
    most = 10_000
    store.client.hset(day, mapping={f"t{i}||m": "1" for i in range(most)} | {"total": str(most)})
    store.client.expire(day, 60)
    for tenant in ("blue", "red", "t17"):
        admitted(store, a_job(tenant))
        store.settle(an_ending(claim_one(store).held), "w1")
    sums = used(store, "tenant", "model")
    assert len(sums) == most + 1
    assert sums[OTHER, OTHER] == Amounts(succeeded=2, prompt_tokens=20, completion_tokens=40)
    assert sums["t17", "m"].succeeded == 2
    assert UsageRecords(store.client).find_gaps() == []


def test_numbers_of_a_newer_version_are_kept(store):
    heartbeat(store)
    day = keys.usage(UsageRecords(store.client).today().isoformat())
    store.client.hset(day, "blue||m", "1 0 0 0 7 0 9 0 42 43")
    store.client.expire(day, 60)
    admitted(store, a_job())
    store.settle(an_ending(claim_one(store).held), "w1")
    assert store.client.hget(day, "blue||m") == b"2 0 0 0 17 0 29 0 42 43"


@pytest.mark.parametrize("spoiled", ["much", "1e300 -5 nan", "9" * 500, ""])
def test_a_spoiled_series_stops_no_job_and_the_doctor_finds_what_is_missing(store, spoiled):
    heartbeat(store)
    book = UsageRecords(store.client)
    day = keys.usage(book.today().isoformat())
    for round_ in range(2):
        admitted(store, a_job())
        store.settle(an_ending(claim_one(store).held), "w1")
        if round_ == 0:
            store.client.hset(day, "blue||m", spoiled)
    assert used(store, "tenant")[("blue",)].succeeded == 1
    (problem,) = book.find_gaps()
    assert day in problem
    assert "succeeded -1" in problem


def test_a_job_of_a_version_without_labels_counts_without_one(store):
    heartbeat(store)
    job_id = admitted(store, a_job(key_label="ci"))
    store.client.hdel(keys.rq_job(job_id), "penstock_key_label")
    job = claim_one(store)
    assert job.key_label == ""
    store.settle(an_ending(job.held), "w1")
    assert list(used(store, "key")) == [("",)]

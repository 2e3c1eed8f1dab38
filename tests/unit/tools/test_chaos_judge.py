"""Tests the reports of a chaos run's judge, for ledgers and final answers that are written out here."""

import time
from typing import Any

import pytest

from tests.chaos.calls import Answer
from tests.chaos.judge import Judge
from tests.chaos.ledger import Entry, Ledger
from tests.chaos.stores import Loss, Repeated

NOT_FOUND = Answer(404, {"error": {"code": "job_not_found"}})
ACKNOWLEDGED_S, READ_S, WALL_S = 100.0, 110.0, time.time()


def a_job(**fields: Any) -> dict[str, Any]:
    plain = {"id": "j1", "tenant": "ann", "status": "succeeded", "text": "w4 w5 ", "finish_reason": "length"}
    plain |= {
        "usage": {"completion_tokens": 2},
        "error": None,
        "started_at": 1.0,
        "ended_at": WALL_S - 5,
        "attempts": 1,
    }
    return plain | {"metadata": {"ref": "r1"}} | fields


class WrittenDoors:
    """Answers a tenant's reads from the jobs that a test has written down."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        self._jobs = {job["id"]: job for job in jobs}

    def call(self, method: str, path: str) -> Answer:
        assert method == "GET"
        if path.startswith("/v1/jobs?"):
            return Answer(200, {"data": list(self._jobs.values()), "has_more": False, "cursor": None})
        job = self._jobs.get(path.removeprefix("/v1/jobs/"))
        return NOT_FOUND if job is None else Answer(200, job)


def entry(event: str, **fields: Any) -> Entry:
    plain = {"event": event, "t": READ_S, "wall": WALL_S, "tenant": "ann", "id": "j1", "ref": "r1", "key": "k1"}
    return plain | fields


ACK = entry("ack", t=ACKNOWLEDGED_S, since=ACKNOWLEDGED_S - 1, via="jobs", owned=False)


def judged(
    entries: list[Entry],
    *jobs: dict[str, Any],
    losses: tuple[Loss, ...] = (),
    bob: Any = (),
    may_run_twice: Any = lambda *_: False,
) -> Judge:
    doors = {"ann": WrittenDoors(*jobs), "bob": WrittenDoors(*bob)}
    judge = Judge(Ledger([ACK, *entries]), list(losses), doors, knows_words=True, may_run_twice=may_run_twice)
    judge.judge()
    judge.check_unchanged()
    return judge


def kinds(judge: Judge) -> list[str]:
    return sorted(anomaly["kind"] for anomaly in judge.anomalies)


def test_a_job_that_ended_as_it_was_read_and_streamed_is_no_anomaly():
    job = a_job()
    entries = [
        entry("read", job=job),
        entry("stream", text="w4 w5 ", via="events", job=job),
        entry("snoop", status=404),
    ]
    assert kinds(judged([one | {"owner": "bob", "reason": None} for one in entries], job)) == []


@pytest.mark.parametrize(
    ("job", "entries", "kind"),
    [
        (a_job(text="w4 "), [entry("read", job=a_job())], "changed after its end"),
        (a_job(), [entry("stream", text="w4 ", via="events", job=None)], "the stream differs from the result"),
        (a_job(), [entry("missing")], "could not be read in between"),
        (a_job(), [entry("snoop", status=200, reason=None)], "another tenant's job was answered"),
        (a_job(), [entry("anomaly", what="500")], "seen by a client"),
        (a_job(status="canceled", error={"code": "canceled"}), [], "canceled by nobody"),
        (a_job(status="canceled", error={"code": "unheard"}), [], "acknowledged and taken back"),
        (a_job(status="failed", error={"code": "engine_error"}), [], "failed by a fault of the product"),
        (a_job(), [ACK | {"id": "j2"}], "one request, several ids"),
        (a_job(text=None), [entry("stream", text="w4 ", via="events", job=None)], "the stream differs from the result"),
        (a_job(), [entry("vanished", ref="r9", since=READ_S - 1)], "lost while its submit waited"),
        (a_job(text="w4 w6 "), [], "not the model's answer"),
        (a_job(text="w4 w4 "), [], "not the model's answer"),
        (a_job(usage={"completion_tokens": 3}), [], "not the model's answer"),
        (a_job(), [entry("stream", text="w5 ", via="events", job=None)], "not the model's answer in a stream"),
        (a_job(), [entry("started again", tokens=1, resumed=False)], "started anew after its text was shown"),
    ],
)
def test_whatever_a_client_was_told_wrongly_is_an_anomaly(job, entries, kind):
    assert kind in kinds(judged(entries, job, a_job(id="j2", metadata={"ref": "r2"})))


def test_a_stream_of_a_job_that_expired_without_its_worker_has_nothing_to_be_compared_with():
    expired = a_job(status="expired", text=None, error={"code": "deadline_exceeded"})
    assert kinds(judged([entry("stream", text="w4 ", via="events", job=None)], expired)) == []


def test_a_job_that_continues_or_had_its_whole_text_when_it_started_anew_is_no_anomaly():
    again = [entry("started again", tokens=1, resumed=True), entry("started again", tokens=2, resumed=False)]
    assert kinds(judged(again, a_job())) == []


def test_a_job_that_starts_anew_is_excused_by_a_loss_of_its_text():
    loss = Loss("failover", READ_S - 2, READ_S, acknowledged_jobs_are_safe=True)
    assert kinds(judged([entry("started again", tokens=1, resumed=False)], a_job(), losses=(loss,))) == []


def test_a_job_that_vanishes_while_its_submit_waits_is_excused_by_a_loss_in_that_time():
    vanished = entry("vanished", ref="r9", since=READ_S - 1)
    loss = Loss("failover", READ_S - 2, READ_S, acknowledged_jobs_are_safe=False)
    assert kinds(judged([vanished], a_job(), losses=(loss,))) == []


def test_usage_is_compared_with_the_ends_that_clients_have_written_down():
    read = a_job(usage={"completion_tokens": 2, "prompt_tokens": 4})
    judge = judged([entry("read", job=read)], a_job(usage={"completion_tokens": 99}))
    assert judge.jobs_by_tenant()["ann"] == [read]
    unread = judged([], a_job())
    assert unread.jobs_by_tenant()["ann"] == [a_job()]
    assert kinds(unread) == []


@pytest.mark.parametrize(
    ("job", "entries", "expected"),
    [
        (a_job(id="j2", metadata={"ref": "r2"}), [], ["acknowledged and not listed", "nobody's job"]),
        (a_job(id="j2", metadata={"ref": "r2"}), [entry("unknown", ref="r2")], ["acknowledged and not listed"]),
        (a_job(id="j2", metadata={}), [], ["acknowledged and not listed"]),
    ],
)
def test_a_listed_job_must_be_one_that_a_client_may_have_asked_for(job, entries, expected):
    judge = judged(entries, job)
    judge.anomalies.clear()
    judge.jobs_by_tenant()
    assert kinds(judge) == expected


def test_a_job_that_was_taken_back_after_its_request_was_spilled_is_nobodys_anomaly():
    taken_back = a_job(id="j2", status="canceled", error={"code": "unheard"})
    judge = judged([], a_job(), taken_back)
    judge.jobs_by_tenant()
    assert kinds(judge) == []


def test_a_request_with_two_jobs_is_an_anomaly_unless_one_was_taken_back():
    taken_back = a_job(id="j2", status="canceled", error={"code": "unheard"})
    assert kinds(judged([], a_job(), taken_back)) == []
    assert kinds(judged([], a_job(), a_job(id="j2"))) == ["one request, several jobs"]


def test_a_request_that_was_sent_again_while_its_first_cell_was_away_may_have_two_jobs():
    asked: list[Repeated] = []

    def may_run_twice(repeated: Repeated) -> bool:
        asked.append(repeated)
        return True

    judge = judged(
        [ACK | {"id": "j2", "since": READ_S - 1, "t": READ_S}], a_job(), a_job(id="j2"), may_run_twice=may_run_twice
    )
    assert kinds(judge) == []
    assert judge.admitted_again == ["r1"]
    assert asked == [Repeated(begin=ACKNOWLEDGED_S - 1, again=READ_S - 1, end=READ_S, has_key=True)]


def test_a_refused_request_that_has_a_job_is_an_anomaly():
    refused = entry("refused", ref="r9", reason="tenant_queue_full")
    other = a_job(id="j9", metadata={"ref": "r9"})
    assert kinds(judged([refused], a_job(), other)) == ["refused and run"]
    assert kinds(judged([refused, entry("unknown", ref="r9")], a_job(), other)) == []


def test_a_job_that_another_tenant_can_read_is_an_anomaly():
    assert "readable by another tenant" in kinds(judged([], a_job(), bob=[a_job(tenant="bob")]))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (None, ["acknowledged and lost"]),
        (Loss("restart", ACKNOWLEDGED_S + 1, ACKNOWLEDGED_S + 2, acknowledged_jobs_are_safe=False), None),
        (Loss("restart", ACKNOWLEDGED_S - 9, ACKNOWLEDGED_S - 8, acknowledged_jobs_are_safe=False), None),
        (Loss("failover", ACKNOWLEDGED_S - 2, ACKNOWLEDGED_S + 2, acknowledged_jobs_are_safe=True), None),
        (Loss("failover", ACKNOWLEDGED_S - 2, ACKNOWLEDGED_S + 2, acknowledged_jobs_are_safe=False), []),
    ],
)
def test_a_missing_job_is_excused_only_by_a_loss_at_the_time_of_its_acknowledgement(loss, expected):
    judge = judged([], losses=() if loss is None else (loss,))
    assert kinds(judge) == (["acknowledged and lost"] if expected is None else expected)
    assert judge.lost_by_durability == (["j1"] if expected == [] else [])


@pytest.mark.parametrize(
    ("since", "at", "expected"),
    [
        (READ_S - 6, READ_S, []),
        (READ_S - 6, READ_S + 9, []),
        (READ_S - 1, READ_S + 1, ["changed after its end"]),
        (READ_S - 30, READ_S - 20, ["changed after its end"]),
    ],
)
def test_a_changed_end_is_excused_only_by_a_loss_of_the_writes_at_that_end(since, at, expected):
    """The job ended five seconds before it was read."""
    loss = Loss("failover", since, at, acknowledged_jobs_are_safe=True)
    assert kinds(judged([entry("read", job=a_job())], a_job(attempts=2), losses=(loss,))) == expected

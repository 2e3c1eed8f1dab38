"""The door keeps its bounds, turns and deadlines, with real processes and the sim engine."""

import itertools
import json
import re
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.processes import in_time, wait_for
from tests.support.up import Up

#: One slot that makes 20 words a second: 80 words take 4 s.
ONE_SLOT = {"PENSTOCK_MAX_BATCH_SIZE": "1", "PENSTOCK_SIM_DECODE_TPS": "20", "PENSTOCK_ADMISSION": "bounds"}


def submit_as(up: Up, tenant: str, words: int, **fields: Any) -> tuple[int, dict[str, Any], float]:
    """Submit one job as a tenant; return the status, the body and the duration in seconds."""

    body = json.dumps({"prompt": "once", "max_tokens": words, **fields}).encode()
    headers = {"content-type": "application/json", "x-tenant": tenant}
    request = urllib.request.Request(f"{up.url}/v1/jobs", body, headers)
    begin = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer), time.monotonic() - begin
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused), time.monotonic() - begin


def fleet_metrics(up: Up) -> dict[str, float]:
    """Return the unlabelled metrics of /metrics/fleet."""
    with urllib.request.urlopen(f"{up.url}/metrics/fleet", timeout=10) as answer:
        text = answer.read().decode()
    return {m[1]: float(m[2]) for m in re.finditer(r"^(penstock_\w+) (\S+)$", text, re.MULTILINE)}


def cancel(up: Up, tenant: str, job_id: str) -> None:
    request = urllib.request.Request(f"{up.url}/v1/jobs/{job_id}", headers={"x-tenant": tenant}, method="DELETE")
    urllib.request.urlopen(request, timeout=10).close()


def job_of(up: Up, tenant: str, job_id: str) -> dict[str, Any]:
    request = urllib.request.Request(f"{up.url}/v1/jobs/{job_id}", headers={"x-tenant": tenant})
    with urllib.request.urlopen(request, timeout=10) as answer:
        job: dict[str, Any] = json.load(answer)
    return job


def test_with_max_inflight_1_one_of_twenty_clients_is_admitted_and_nineteen_get_a_yield(tmp_path):
    rounds = itertools.count(1)
    with Up(tmp_path / "state", PENSTOCK_MAX_INFLIGHT="1", **ONE_SLOT).serving() as up:

        def attempt():
            number = next(rounds)
            with ThreadPoolExecutor(20) as clients:
                answers = list(clients.map(lambda i: submit_as(up, f"t{i}", 80), range(20)))
            assert sorted(status for status, *_ in answers) == [202] + [503] * 19
            for status, body, _ in answers:
                if status == 503:
                    assert body["status"] == "yield"
                    assert body["reason"] == "inflight_full"
                    assert 50 <= body["retry_hint_ms"] <= 60_000
            figures = wait_for(
                lambda: (f := fleet_metrics(up)).get("penstock_executed_total") == number and f,
                "the admitted job to run",
            )
            assert figures["penstock_inflight"] == 1
            assert figures["penstock_yielded_total"] == 19 * number
            (admitted,) = [(i, body["id"]) for i, (status, body, _) in enumerate(answers) if status == 202]
            wait_for(lambda: fleet_metrics(up)["penstock_inflight"] == 0, "the admitted job to end", timeout_s=20)
            assert job_of(up, f"t{admitted[0]}", admitted[1])["status"] == "succeeded"
            # The answers do not wait for the admitted job, which takes four seconds.
            return [(max(seconds for *_, seconds in answers), 1)]

        in_time(attempt)


@pytest.mark.parametrize("fairness", ["tokens", "turns"])
def test_equal_jobs_of_three_tenants_take_exact_turns_in_one_slot(tmp_path, fairness):
    with Up(tmp_path / "state", **(ONE_SLOT | {"PENSTOCK_SIM_DECODE_TPS": "100"}), PENSTOCK_FAIRNESS=fairness) as up:
        up.serving()
        # This job holds the slot until all thirty others are queued.
        _, first, _ = submit_as(up, "before", 1_900)
        wait_for(lambda: job_of(up, "before", first["id"])["status"] == "running", "the first job to run")
        admitted = {tenant: [submit_as(up, tenant, 4)[1]["id"] for _ in range(10)] for tenant in ("c", "a", "b")}
        cancel(up, "before", first["id"])
        jobs = [(tenant, job_id) for tenant, ids in admitted.items() for job_id in ids]
        wait_for(
            lambda: all(job_of(up, *job)["status"] == "succeeded" for job in jobs), "all jobs to end", timeout_s=40
        )
        started = {job: job_of(up, *job)["started_at"] for job in jobs}
        order = "".join(tenant for tenant, _ in sorted(jobs, key=started.__getitem__))
        # At each turn all have the same service, and the job of `c` came first.
        assert order == "cab" * 10


def test_a_tenants_seventeenth_queued_job_is_refused_while_another_tenants_first_is_admitted(tmp_path):
    with Up(tmp_path / "state", **ONE_SLOT).serving() as up:
        _, running, _ = submit_as(up, "a", 200)
        wait_for(lambda: job_of(up, "a", running["id"])["status"] == "running", "the first job to run")
        assert [submit_as(up, "a", 4)[0] for _ in range(16)] == [202] * 16
        status, body, _ = submit_as(up, "a", 4)
        assert (status, body["reason"]) == (503, "tenant_queue_full")
        assert (body["limits"]["value"], body["limits"]["max"]) == (16, 16)
        assert submit_as(up, "b", 4)[0] == 202


def test_a_deadline_is_enforced_in_the_queue_and_during_an_answer(tmp_path):
    with Up(tmp_path / "state", **ONE_SLOT).serving() as up:

        def attempt():
            _, long, _ = submit_as(up, "a", 200, deadline_ms=4_000)
            wait_for(lambda: job_of(up, "a", long["id"])["status"] == "running", "the long job to run")
            _, late, _ = submit_as(up, "a", 4, deadline_ms=500)
            ended = wait_for(
                lambda: (j := job_of(up, "a", late["id"]))["status"] == "expired" and j, "the queued job to expire"
            )
            assert ended["error"]["stage"] == "queue"
            assert ended["attempts"] == 0
            queued_s = ended["ended_at"] - ended["created_at"]
            assert queued_s >= 0.5
            cut = wait_for(
                lambda: (j := job_of(up, "a", long["id"]))["status"] == "expired" and j, "the long job to expire"
            )
            assert (cut["error"]["stage"], cut["finish_reason"]) == ("decode", "deadline")
            assert len(cut["text"].split()) == cut["usage"]["completion_tokens"] > 20
            # A step of the sim engine takes 50 ms; the rest is for the settle.
            return [(queued_s, 0.85), (cut["ended_at"] - cut["deadline_at"], 0.3)]

        in_time(attempt)


def test_reading_a_jobs_event_stream_counts_as_polling_it(tmp_path):
    sim = ONE_SLOT | {"PENSTOCK_SIM_DECODE_TPS": "50"}
    with Up(tmp_path / "state", **sim).serving() as up:
        status, job = up.ask("POST", "/v1/jobs", {"prompt": "once", "max_tokens": 150, "poll_grace_ms": 1_500})
        assert status == 202, job
        with urllib.request.urlopen(f"{up.url}/v1/jobs/{job['id']}/events", timeout=30) as events:
            stream = events.read().decode()
        assert stream.count("event: token") > 10
        ended = up.job(job["id"])
        assert (ended["status"], ended["usage"]["completion_tokens"]) == ("succeeded", 150)

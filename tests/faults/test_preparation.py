"""Tests of jobs that take much CPU time: their preparation delays no other job, and their tenant pays for the time."""

import threading
import time
from dataclasses import replace

import pytest

from shared.jobs.states import JobState
from shared.store import keys
from tests.support.one_worker import MODEL, FlakyStore, admit_job, make_worker
from tests.support.processes import wait_for
from tests.support.tool_templates import a_tool
from workers.engine.events import JobRejected

#: A payload that is not prepared on the thread of the passes.
SLOW = {"prompt": "a b c", "response_format": {"type": "json_object"}}
TOOLS = {"messages": [{"role": "user", "content": "a b c"}], "tools": [a_tool("f", a={"multipleOf": 1_000_003})]}
#: Each payload that needs a grammar.
GRAMMARS = {"response_format": SLOW, "tools": TOOLS}


def service(store, tenant):
    return float(store.client.hget(keys.tenant(tenant), keys.service_field(MODEL)) or 0)


@pytest.fixture
def worker(redis_client):
    return make_worker(FlakyStore(redis_client), PENSTOCK_MAX_BATCH_SIZE="4")


@pytest.fixture
def gate(worker, monkeypatch):
    """Holds the preparation of the jobs that need a grammar until it is opened. Lists the tenants in preparation."""
    gate = threading.Event()
    gate.tenants = []
    prepare = worker.engine.backend.prepare

    def held(spec):
        if not GRAMMARS.keys().isdisjoint(spec.payload):
            gate.tenants.append(spec.tenant)
            assert gate.wait(30)
        return prepare(spec)

    monkeypatch.setattr(worker.engine.backend, "prepare", held)
    yield gate
    gate.set()


def advance(worker, until):
    """Run passes and steps until the condition is true. The threads that prepare jobs take real time."""

    def one_round():
        worker.job_loop.one_pass()
        worker.engine.step()
        return until()

    wait_for(one_round, "the jobs", timeout_s=60)


@pytest.mark.parametrize("payload", GRAMMARS.values(), ids=GRAMMARS)
def test_a_job_that_is_slow_to_prepare_delays_no_other_job(worker, gate, payload):
    slow = [admit_job(worker.store, "red", payload=payload) for _ in range(3)]
    worker.job_loop.one_pass()
    wait_for(lambda: gate.tenants == ["red"], "one preparation of red")
    worker.heartbeat()
    other = admit_job(worker.store, "blue")
    worker.job_loop.look_for_work()
    worker.run_until(lambda: worker.store.touch(other, quiet=True).state is JobState.SUCCEEDED)
    assert gate.tenants == ["red"], "a tenant's jobs are prepared one at a time"
    # The worker still counts as live, however long the jobs before took on a busy machine.
    worker.heartbeat()
    another = admit_job(worker.store, "green", payload=payload)
    worker.job_loop.look_for_work()
    worker.job_loop.one_pass()
    wait_for(lambda: gate.tenants == ["red", "green"], "the preparation of green, before red's second job")
    gate.set()
    advance(worker, worker.all_ended)
    assert [worker.store.touch(job, quiet=True).state for job in [*slow, another]] == [JobState.SUCCEEDED] * 4


def test_a_job_in_preparation_keeps_its_slot_and_its_cells(worker, gate):
    for _ in range(4):
        admit_job(worker.store, "red", payload=SLOW)
    free = worker.claimer._free_capacity()
    worker.job_loop.one_pass()
    held = worker.claimer._free_capacity()
    assert held.slots == free.slots - 4
    assert held.cells < free.cells
    gate.set()
    advance(worker, worker.all_ended)
    assert worker.claimer._free_capacity() == free


def test_a_job_that_is_canceled_or_lost_during_its_preparation_does_not_run(worker, gate):
    canceled = admit_job(worker.store, "red", payload=SLOW)
    lost = admit_job(worker.store, "blue", payload=SLOW)
    worker.job_loop.one_pass()
    wait_for(lambda: len(gate.tenants) == 2, "both preparations")
    worker.store.cancel(canceled, tenant="red")
    worker.claimed_jobs.request_cancel(canceled)
    worker.claimed_jobs.remove(next(claim for claim in worker.claimed_jobs.held() if claim.id == lost))
    gate.set()
    advance(worker, lambda: ended(worker, canceled))
    assert worker.store.touch(canceled, quiet=True).state is JobState.CANCELED
    assert worker.engine.stats.completion_tokens == 0


def ended(worker, job_id):
    return worker.store.touch(job_id, quiet=True).state in {JobState.CANCELED, JobState.FAILED, JobState.SUCCEEDED}


@pytest.mark.parametrize("payload", GRAMMARS.values(), ids=GRAMMARS)
def test_a_tenant_is_charged_for_the_preparation_of_jobs_that_are_then_rejected(worker, monkeypatch, payload):
    """Each job costs as much as the prompt that the engine reads in the CPU time of its preparation, 50 ms."""

    def costly(spec):
        until_s = time.thread_time() + 0.05
        while time.thread_time() < until_s:
            pass
        raise JobRejected("unsupported_parameter", "no", "response_format")

    monkeypatch.setattr(worker.engine.backend, "prepare", costly)
    before = service(worker.store, "red")
    jobs = [admit_job(worker.store, "red", payload=payload) for _ in range(4)]
    worker.job_loop.one_pass()
    advance(worker, worker.all_ended)
    view = worker.store.touch(jobs[0], quiet=True)
    assert (view.state, view.code, view.extra["param"]) == (JobState.FAILED, "unsupported_parameter", "response_format")
    per_job_wt = (service(worker.store, "red") - before) / 1000 / 4
    assert 0.04 <= per_job_wt / worker.engine.backend.facts.prefill_tps < 1


class Panic(BaseException):
    """Like PanicException, the form in which Python code sees a panic of a library in Rust. It is no `Exception`."""


def test_a_panic_of_a_native_library_ends_its_job_only(worker, monkeypatch):
    prepare = worker.engine.backend.prepare

    def panicking(spec):
        if spec.payload.get("seed") == 1:
            raise Panic("panicked at lib.rs")
        return prepare(spec)

    monkeypatch.setattr(worker.engine.backend, "prepare", panicking)
    broken = [admit_job(worker.store, "red", payload=payload | {"seed": 1}) for payload in (SLOW, {"prompt": "a b c"})]
    whole = admit_job(worker.store, "red", payload=SLOW)
    worker.job_loop.one_pass()
    advance(worker, worker.all_ended)
    views = [worker.store.touch(job, quiet=True) for job in broken]
    assert [(view.state, view.code) for view in views] == [(JobState.FAILED, "engine_error")] * 2
    assert worker.store.touch(whole, quiet=True).state is JobState.SUCCEEDED


def test_a_tenant_is_charged_for_the_cpu_time_of_its_grammar_while_the_answer_grows_and_at_its_end(worker, monkeypatch):
    """Two equal jobs, but the grammar of one takes 3 s: as much as the engine needs for 3 s of prompts."""
    spent_s = {}
    backend, prepare = worker.engine.backend, worker.engine.backend.prepare
    monkeypatch.setattr(backend, "prepare", lambda spec: replace(prepare(spec), grammar="of the simulated engine"))
    monkeypatch.setattr(backend, "grammar_cpu_s", lambda slot: spent_s.get(tenant_of(worker, slot), 0.0))
    payload = {"prompt": "a b c"}
    jobs = {tenant: admit_job(worker.store, tenant, payload=payload, max_tokens=40) for tenant in ("red", "blue")}
    worker.run_until(lambda: worker.engine.stats.completion_tokens > 2)
    spent_s["red"] = 3.0
    worker.run_until(lambda: any(job.cpu_tokens for job in worker.claimed_jobs.progress(1000.0).values()))
    worker.heartbeat()
    cpu_mwt = 1000 * (3.0 - 0.002) * worker.engine.backend.facts.prefill_tps
    assert service(worker.store, "red") >= cpu_mwt
    assert service(worker.store, "blue") < cpu_mwt
    worker.run_until(worker.all_ended)
    assert service(worker.store, "red") - service(worker.store, "blue") == pytest.approx(cpu_mwt, abs=1000)
    assert {worker.store.touch(job, quiet=True).state for job in jobs.values()} == {JobState.SUCCEEDED}


def tenant_of(worker, slot):
    return worker.engine._running[slot].job.spec.tenant

"""Tests of pauses with real processes: short jobs beside long answers, workers that stop, and a real model."""

import pytest

from shared.jobs.states import JobState
from shared.store import keys
from tests.support.processes import wait_for
from workers.demo.random_gguf import write_random_model
from workers.exit_codes import ExitCode

ON = {"PENSTOCK_PREEMPTION": "on"}


def check_answers(stage, *ids):
    """Check that the jobs have whole answers, which were streamed without a gap and without a repeat."""
    for job_id, view in zip(ids, stage.ended(*ids), strict=True):
        assert view.state is JobState.SUCCEEDED
        assert view.text == "".join(f"w{view.prompt_tokens + i} " for i in range(view.max_tokens))
        events = stage.store.read_events({job_id: "0"}, block_ms=1)[job_id]
        if "requeued" not in [fields["type"] for _, fields in events]:
            assert "".join(fields.get("text", "") for _, fields in events) == view.text


def with_a_paused_job(stage, **environ):
    """Return a worker with two slots, the ids of two long answers (one is paused), and that of another job."""
    worker = stage.worker(PENSTOCK_MAX_BATCH_SIZE="2", **ON, **environ)
    loud = [stage.admit("loud", max_tokens=600) for _ in range(2)]
    for job_id in loud:
        stage.wait_for_text(job_id)
    quiet = stage.admit("quiet", max_tokens=300)
    wait_for(lambda: [job for job in loud if is_paused(stage, job)], "a paused job")
    stage.wait_for_text(quiet)
    return worker, loud, quiet


def is_paused(stage, job_id):
    return bool(stage.client.hget(keys.rq_job(job_id), "penstock_paused_since_ms"))


def test_a_short_job_starts_at_once_although_another_tenants_long_answers_have_all_slots(stage):
    stage.worker(PENSTOCK_MAX_BATCH_SIZE="4", **ON)
    loud = [stage.admit("loud", max_tokens=1_500) for _ in range(4)]
    for job_id in loud:
        stage.wait_for_text(job_id)
    quiet = stage.admit("quiet", max_tokens=10)
    (view,) = stage.ended(quiet)
    # Each of the long answers takes 15 s.
    assert {job.state for job in stage.jobs(loud)} == {JobState.RUNNING}
    assert view.first_claim_ms - view.admitted_ms < 5_000
    check_answers(stage, quiet)
    wait_for(lambda: stage.stat("pauses|sim|copied") == 1, "the heartbeat that counts the pause")
    for job_id in loud:
        stage.store.cancel(job_id)
    stage.ended(*loud)


def test_a_short_job_starts_although_the_worker_may_pause_no_further_job_and_the_long_answers_stay_whole(stage):
    stage.worker(PENSTOCK_MAX_BATCH_SIZE="1", PENSTOCK_QUANTUM_MS="200", **ON)
    long = []
    for tenant in ("a", "b", "c"):
        long.append(stage.admit(tenant, max_tokens=1_000))
        wait_for(lambda: len([job for job in stage.jobs(long) if job.first_claim_ms]) >= min(2, len(long)), "a start")
    quiet = stage.admit("quiet", max_tokens=10)
    stage.ended(quiet)
    # Each of the long answers takes 10 s.
    assert {job.state for job in stage.jobs(long)} <= {JobState.RUNNING, JobState.QUEUED}
    events = [stage.store.read_events({job_id: "0"}, block_ms=1)[job_id] for job_id in long]
    assert any(fields["type"] == "requeued" for of_job in events for _, fields in of_job)
    wait_for(lambda: not stage.client.zcard(keys.inflight()), "the ends of the long answers", timeout_s=120)
    check_answers(stage, quiet, *long)
    for job_id in long:
        of_job = [fields for _, fields in stage.store.read_events({job_id: "0"}, block_ms=1)[job_id]]
        assert {fields.get("resumed") for fields in of_job if fields["type"] == "started"} <= {None, "1"}
        assert "".join(fields.get("text", "") for fields in of_job) == stage.jobs([job_id])[0].text


def test_a_short_job_with_a_deadline_is_admitted_beside_long_answers_and_ends_when_it_was_predicted_to(stage):
    stage.worker(PENSTOCK_MAX_BATCH_SIZE="4", PENSTOCK_ADMISSION="full", **ON)
    # The answers of 10 to 19 s leave no slot to others for longer than the deadline.
    loud = [stage.admit("loud", max_tokens=1_000 + 300 * i, deadline_ms=200_000) for i in range(4)]
    for job_id in loud:
        stage.wait_for_text(job_id)
    stage.client.hset(keys.books("sim"), mapping={"run_ms": 48_000})
    quiet = stage.admit("quiet", max_tokens=10, deadline_ms=8_000)
    (view,) = stage.ended(quiet)
    assert {job.state for job in stage.jobs(loud)} == {JobState.RUNNING}
    assert view.state is JobState.SUCCEEDED
    assert view.first_claim_ms - view.admitted_ms < 5_000
    assert int(stage.client.hget(keys.rq_job(quiet), "penstock_eta_ms")) - view.admitted_ms < 1_000
    for job_id in loud:
        stage.store.cancel(job_id)
    stage.ended(*loud)


def test_a_worker_that_drains_gives_its_paused_job_back_at_once_and_another_one_continues(stage):
    worker, loud, quiet = with_a_paused_job(stage)
    (paused,) = [job for job in loud if is_paused(stage, job)]
    worker.terminate()
    wait_for(lambda: stage.job(paused).state is JobState.QUEUED, "the paused job to be given back")
    assert int(stage.client.hget(keys.rq_job(paused), "penstock_kept_tokens")) >= 1
    # The drain continues, because the other jobs take longer.
    assert worker.alive
    stage.worker(PENSTOCK_MAX_BATCH_SIZE="4", **ON)
    check_answers(stage, paused)
    events = [fields for _, fields in stage.store.read_events({paused: "0"}, block_ms=1)[paused]]
    assert "".join(fields.get("text", "") for fields in events) == stage.job(paused).text
    assert [fields.get("resumed") for fields in events if fields["type"] == "started"] == [None, "1"]
    assert worker.exit_code() == ExitCode.DRAINED
    check_answers(stage, quiet, *loud)
    assert {view.attempts for view in stage.jobs([quiet, *loud])} == {1}


def test_a_worker_that_is_stopped_without_a_grace_time_gives_its_paused_jobs_back(stage):
    worker, loud, quiet = with_a_paused_job(stage, PENSTOCK_DRAIN_GRACE_MS="0")
    worker.terminate()
    assert worker.exit_code() == ExitCode.DRAINED
    assert {view.state for view in stage.jobs([quiet, *loud])} == {JobState.QUEUED}
    assert not any(is_paused(stage, job_id) for job_id in loud)
    stage.worker(PENSTOCK_MAX_BATCH_SIZE="4", **ON)
    check_answers(stage, quiet, *loud)


def test_the_jobs_of_a_killed_worker_run_again_whether_they_were_paused_or_not(stage):
    worker, loud, quiet = with_a_paused_job(stage)
    worker.kill()
    stage.worker(PENSTOCK_MAX_BATCH_SIZE="4", **ON)
    check_answers(stage, quiet, *loud)
    assert not any(is_paused(stage, job_id) for job_id in loud)


@pytest.mark.parametrize("cache", ["split", "shared"])
def test_the_answers_of_a_real_model_are_the_same_whether_they_are_paused_or_not(stage, tmp_path, cache):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    path = tmp_path / "tiny.gguf"
    write_random_model(path, n_embd=256, n_layer=6, n_head=8, n_head_kv=4, n_ff=768, n_ctx_train=4096)
    worker = stage.worker(
        PENSTOCK_ENGINE="llama",
        PENSTOCK_MODEL=str(path),
        PENSTOCK_KV_CELLS="8192" if cache == "split" else "6144",
        PENSTOCK_MAX_BATCH_SIZE="2",
        PENSTOCK_QUANTUM_MS="200",
        **ON,
    )
    assert stage.view(worker).facts["cache"] == cache

    def admit(tenant, max_tokens):
        # The two likeliest tokens of this answer are always at least .011 apart, so no rounding changes it.
        payload = {"prompt": " ".join(["story"] * 24), "temperature": 0}
        return stage.admit(tenant, model="tiny", payload=payload, prompt_tokens=24, max_tokens=max_tokens)

    (alone,) = stage.ended(admit("loud", 400))
    loud = [admit("loud", 400) for _ in range(2)]
    for job_id in loud:
        stage.wait_for_text(job_id)
    quiet = [admit(f"quiet{i}", 60) for i in range(3)]
    views = stage.ended(*loud, *quiet, timeout_s=60)
    assert {view.state for view in views} == {JobState.SUCCEEDED}
    assert [view.text for view in views[:2]] == [alone.text] * 2
    assert all(alone.text.startswith(view.text) for view in views)
    for view in views:
        events = stage.store.read_events({view.id: "0"}, block_ms=1)[view.id]
        assert "".join(fields.get("text", "") for _, fields in events) == view.text
    wait_for(lambda: stage.stat("pauses|tiny|kept") + stage.stat("pauses|tiny|copied") >= 1, "a pause")

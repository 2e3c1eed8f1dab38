"""Tests of a worker with a real model: it is killed, runs a step longer than its leases, or finds no usable model."""

import json

import pytest

from shared.jobs.outcomes import EndCode
from shared.jobs.states import JobState
from shared.store import keys
from tests.support.processes import wait_for
from tests.support.schemas import BOMBS
from workers.demo.random_gguf import write_random_model
from workers.exit_codes import ExitCode

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A llama model of about 15 MB. On a CPU it is so slow that a long prompt takes a second or more."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_random_model(path, n_embd=256, n_layer=6, n_head=8, n_head_kv=4, n_ff=768, n_ctx_train=4096)
    return path


@pytest.fixture
def llama(model):
    """The settings of a worker with this model and with KV cells for eight jobs of any size."""
    return {"PENSTOCK_ENGINE": "llama", "PENSTOCK_MODEL": str(model), "PENSTOCK_KV_CELLS": "16384"}


def admit(stage, tenant="blue", *, words=4, start="story", **fields):
    """Admit a job with a prompt of this many words, which begins with `start`. Return its id."""
    payload = {"prompt": " ".join([start, *["story"] * (words - 1)]), "temperature": 0}
    return stage.admit(tenant, model="tiny", payload=payload, prompt_tokens=words, **fields)


def test_eight_running_jobs_of_a_killed_worker_get_the_same_answer_from_another_worker(stage, llama):
    first, second = stage.worker(**llama), stage.worker(**llama)
    # This answer is long enough that the jobs still run when the worker is killed. Its two likeliest tokens are always
    # at least .011 apart, so rounding that depends on other sequences cannot change it.
    request = {"words": 24, "max_tokens": 150}
    (alone,) = stage.ended(admit(stage, **request), timeout_s=60)
    second.pause()
    ids = [admit(stage, tenant, **request) for tenant in "abcdabcd"]
    stage.wait_until_running(*ids)
    first.kill()
    second.resume()
    for view in stage.ended(*ids, timeout_s=120):
        assert (view.state, view.attempts) == (JobState.SUCCEEDED, 2)
        assert view.text == alone.text
    assert stage.inflight() == 0


def test_a_job_whose_error_message_cannot_be_encoded_fails_and_another_job_succeeds(stage, llama):
    """A name in the schema contains half a character, and so does the error message."""
    worker = stage.worker(**llama)
    worker.pause()
    corrupt, other = admit(stage, "a", max_tokens=5), admit(stage, "b", max_tokens=5)
    schema = {"type": "object", "properties": {"half \ud800": {"type": "strung"}}}
    broken = {"prompt": "x", "max_tokens": 5, "response_format": {"type": "json_schema", "schema": schema}}
    stage.client.set(keys.payload(corrupt), json.dumps(broken))
    worker.resume()
    views = stage.ended(corrupt, other)
    assert [view.state for view in views] == [JobState.FAILED, JobState.SUCCEEDED]
    assert views[0].code == EndCode.UNSUPPORTED_PARAMETER
    assert "half of a surrogate pair" in views[0].message
    assert not worker.log_lines("duty.fault")


def test_schemas_that_take_long_to_compile_do_not_delay_another_tenant_s_job(stage, llama):
    worker = stage.worker(**llama, PENSTOCK_MAX_BATCH_SIZE="8")
    worker.pause()
    form = {"type": "json_schema", "json_schema": {"schema": BOMBS["multiples"]}}
    payload = {"prompt": "story", "response_format": form}
    slow = [stage.admit("red", model="tiny", payload=payload, prompt_tokens=1, max_tokens=16) for _ in range(4)]
    other = admit(stage, "blue", max_tokens=16)
    worker.resume()
    *refused, answered = stage.ended(*slow, other, timeout_s=60)
    assert {view.code for view in refused} == {EndCode.UNSUPPORTED_PARAMETER}
    assert all("takes more than 500 ms to compile" in view.message for view in refused)
    assert answered.state is JobState.SUCCEEDED
    assert answered.ended_ms < max(view.ended_ms for view in refused)


@pytest.mark.timeout(1200)
def test_a_job_keeps_its_lease_during_a_step_longer_than_two_leases(stage, llama):
    """The whole prompt runs in one step, because no sequence decodes beside it that would limit the step."""
    lease_ms = 300
    slow = {"PENSTOCK_PREFILL_CHUNK": "4096", "PENSTOCK_LEASE_MS": str(lease_ms), "PENSTOCK_THREADS": "1"}
    stage.worker(**llama, **slow)
    stage.worker(**llama, **slow)
    # The lease is renewed every 100 ms. A busy machine may be later than 200 ms with a renewal, but not each time.
    for number in range(5):
        # Of a prompt that was tried before, a worker would have the cells.
        (view,) = stage.ended(admit(stage, words=700, start=f"{number}", max_tokens=2), timeout_s=200)
        if view.attempts == 1:
            break
    assert (view.state, view.attempts) == (JobState.SUCCEEDED, 1)
    assert view.usage.prefill_ms > 2 * lease_ms


def test_a_worker_logs_what_it_loaded_before_it_claims(stage, llama):
    worker = stage.worker(**llama)
    wait_for(lambda: worker.log_lines("worker.claiming"), "the worker to claim")
    log = worker.log.read_text()
    events = ["worker.device", "worker.layers", "worker.memory", "worker.slots", "worker.rates", "worker.claiming"]
    places = [log.index(event) for event in events]
    assert places == sorted(places)
    assert '"sum_mib"' in worker.log_lines("worker.memory")[0]


def test_a_worker_whose_model_is_missing_or_broken_exits_with_an_error_that_names_the_file(stage, llama, tmp_path):
    missing = stage.worker(wait=False, **llama | {"PENSTOCK_MODEL": str(tmp_path / "nowhere.gguf")})
    assert missing.exit_code() == ExitCode.MODEL
    assert "nowhere.gguf" in missing.log.read_text().splitlines()[-1]
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and then nothing of use")
    worker = stage.worker(wait=False, **llama | {"PENSTOCK_MODEL": str(broken)})
    assert worker.exit_code() == ExitCode.MODEL
    assert "broken.gguf" in worker.log.read_text().splitlines()[-1]
    wait_for(lambda: not stage.store.snapshot().workers, "the store to list no worker")

"""A worker with a real model: killed with eight running, busy with a step that outlasts leases, without a model."""

import json

import pytest

from shared.jobs.outcomes import EndCode
from shared.jobs.states import JobState
from shared.store import keys
from tests.support.processes import wait_for
from workers.demo.random_gguf import write_random_model
from workers.exit_codes import ExitCode

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A real llama of about 15 MB: slow enough on a CPU that a long prompt takes a second and more."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_random_model(path, n_embd=256, n_layer=6, n_head=8, n_head_kv=4, n_ff=768, n_ctx_train=4096)
    return path


@pytest.fixture
def llama(model):
    """Settings of a worker with this model; KV cells for eight jobs of any size."""
    return {"PENSTOCK_ENGINE": "llama", "PENSTOCK_MODEL": str(model), "PENSTOCK_KV_CELLS": "16384"}


def ask(stage, tenant="blue", *, words=4, **spelled):
    payload = {"prompt": " ".join(["story"] * words), "temperature": 0}
    return stage.admit(tenant, model="tiny", payload=payload, prompt_tokens=words, **spelled)


def test_eight_running_jobs_of_a_killed_worker_get_the_answer_that_they_would_have_got(stage, llama):
    first, second = stage.worker(**llama), stage.worker(**llama)
    # An answer that still runs when it is seen to, and whose two likeliest tokens are nowhere nearer than .011: no
    # company decides by rounding.
    asked = {"words": 24, "max_tokens": 400}
    (alone,) = stage.ended(ask(stage, **asked), timeout_s=60)
    second.pause()
    ids = [ask(stage, tenant, **asked) for tenant in "abcdabcd"]
    stage.running(*ids)
    first.kill()
    second.resume()
    for view in stage.ended(*ids, timeout_s=60):
        assert (view.state, view.attempts) == (JobState.SUCCEEDED, 2)
        assert view.text == alone.text
    assert stage.inflight() == 0


def test_a_reason_that_no_store_can_write_fails_its_job_and_holds_up_no_other(stage, llama):
    """Somebody's hand has put half a character where a schema's property has its name, which the reason quotes."""
    worker = stage.worker(**llama)
    worker.pause()
    corrupt, other = ask(stage, "a", max_tokens=5), ask(stage, "b", max_tokens=5)
    schema = {"type": "object", "properties": {"half \ud800": {"not": {}}}}
    broken = {"prompt": "x", "max_tokens": 5, "response_format": {"type": "json_schema", "schema": schema}}
    stage.client.set(keys.payload(corrupt), json.dumps(broken))
    worker.resume()
    views = stage.ended(corrupt, other)
    assert [view.state for view in views] == [JobState.FAILED, JobState.SUCCEEDED]
    assert views[0].code == EndCode.INVALID_VALUE
    assert "at half ?: not cannot be kept" in views[0].message
    assert not worker.said("duty.fault")


def test_a_step_longer_than_two_leases_costs_no_lease(stage, llama):
    """The whole prompt in one step, with nobody decoding beside it who would bound the step."""
    lease_ms = 100
    slow = {"PENSTOCK_PREFILL_CHUNK": "4096", "PENSTOCK_LEASE_MS": str(lease_ms), "PENSTOCK_THREADS": "1"}
    stage.worker(**llama, **slow)
    stage.worker(**llama, **slow)
    (view,) = stage.ended(ask(stage, words=700, max_tokens=2), timeout_s=60)
    assert (view.state, view.attempts) == (JobState.SUCCEEDED, 1)
    assert view.usage.prefill_ms > 2 * lease_ms


def test_a_worker_says_what_it_loaded_before_it_claims(stage, llama):
    worker = stage.worker(**llama)
    wait_for(lambda: worker.said("worker.claiming"), "the worker to claim")
    log = worker.log.read_text()
    events = ["worker.device", "worker.layers", "worker.memory", "worker.slots", "worker.rates", "worker.claiming"]
    places = [log.index(event) for event in events]
    assert places == sorted(places)
    assert '"sum_mib"' in worker.said("worker.memory")[0]


def test_a_worker_without_its_model_ends_with_a_sentence(stage, llama, tmp_path):
    missing = stage.worker(wait=False, **llama | {"PENSTOCK_MODEL": str(tmp_path / "nowhere.gguf")})
    assert missing.exit_code() == ExitCode.MODEL
    assert "nowhere.gguf" in missing.log.read_text().splitlines()[-1]
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and then nothing of use")
    worker = stage.worker(wait=False, **llama | {"PENSTOCK_MODEL": str(broken)})
    assert worker.exit_code() == ExitCode.MODEL
    assert "broken.gguf" in worker.log.read_text().splitlines()[-1]
    wait_for(lambda: not stage.store.snapshot().workers, "nobody to count as a worker")

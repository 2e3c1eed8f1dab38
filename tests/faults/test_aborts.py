"""Tests of workers whose engine aborts in the middle of a step, as llama.cpp does after an error on a GPU."""

import signal
from pathlib import Path

import pytest

from shared.jobs.states import JobState
from tests.support.processes import Process, Stage, wait_for
from workers.demo.random_gguf import write_random_model

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

_HOOK = Path(__file__).resolve().parents[1] / "support" / "aborting"


@pytest.fixture
def llama(tmp_path) -> dict[str, str]:
    """The settings of a worker with a small model and 64 slots."""
    path = tmp_path / "tiny.gguf"
    write_random_model(path)
    return {
        "PENSTOCK_ENGINE": "llama",
        "PENSTOCK_MODEL": str(path),
        "PENSTOCK_MAX_BATCH_SIZE": "64",
        "PENSTOCK_KV_CELLS": "16384",
    }


def start_aborting(stage: Stage, llama: dict[str, str], file: Path) -> Process:
    """Start a worker whose steps abort once `file` exists."""
    return stage.worker(**llama, PYTHONPATH=str(_HOOK), TEST_ABORT_IF=str(file))


def test_64_jobs_whose_worker_aborts_in_mid_step_again_and_again_succeed_once(stage, llama, tmp_path):
    worker = start_aborting(stage, llama, tmp_path / "1")
    payload = {"prompt": "tell me a story", "temperature": 0}
    ids = [
        stage.admit(tenant, model="tiny", payload=payload, prompt_tokens=4, max_tokens=100)
        for tenant in "abcd"
        for _ in range(16)
    ]
    for crashes in (1, 2):
        (tmp_path / str(crashes)).touch()
        assert worker.exit_code(timeout_s=60) == -signal.SIGABRT
        (told,) = worker.log_lines("engine.aborted")
        assert "ggml-cuda.cu:103: CUDA error" in told
        assert "an illegal instruction was encountered" in told
        assert '"device": "CPU"' in told
        assert any("an illegal instruction" in line for line in worker.log_lines("engine.llama"))
        worker = start_aborting(stage, llama, tmp_path / str(crashes + 1))
        # Workers reap, so no crash is counted while none lives.
        wait_for(lambda crashes=crashes: stage.stat("crashes|tiny") == crashes, "the crash to be counted")
    views = stage.ended(*ids, timeout_s=120)
    assert {view.state for view in views} == {JobState.SUCCEEDED}
    assert all(stage.event_types(job_id).count("ended") == 1 for job_id in ids)
    assert stage.stat("ended|succeeded") == len(ids)

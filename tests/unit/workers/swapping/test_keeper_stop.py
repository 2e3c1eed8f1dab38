"""Tests that a stop request lets the child that holds a model end its running jobs, also while another follows it."""

import pytest

from shared.clock import RealClock
from shared.jobs.model_name import listed_models
from shared.settings.settings import load
from workers.exit_codes import ExitCode
from workers.place import WorkerPlace
from workers.swapping import child
from workers.swapping.child import Child
from workers.swapping.keeper import ModelKeeper


class Process:
    """A process that ends some looks after the first request to stop, and at once at the second."""

    def __init__(self, *_, **__):
        self.requests, self._looks = 0, 5

    def terminate(self):
        self.requests += 1

    def poll(self):
        self._looks -= self.requests > 0
        if self.requests > 1:
            return int(ExitCode.FORCED)
        return int(ExitCode.DRAINED) if self._looks <= 0 else None


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_stop_request_lets_running_jobs_end_although_another_model_was_about_to_follow(monkeypatch, is_replaced):
    monkeypatch.setattr(child.subprocess, "Popen", Process)
    settings, place = load({"PENSTOCK_ENGINE": "sim", "PENSTOCK_MODELS": "a=a,b=b"}, None), WorkerPlace(0, 1)
    keeper = ModelKeeper(settings, listed_models(settings), None, place, RealClock())
    keeper._child = Child(settings, "a", "a", place)
    if is_replaced:
        keeper._child.stop()
    assert keeper._stop() == ExitCode.DRAINED
    assert keeper._child._process.requests == 1

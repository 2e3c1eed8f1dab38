"""A real llama-server is killed under load, and one of two: every job ends once. `make test-upstream` runs this."""

from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from tests.support.llama_server import LLAMA_SERVER, WHY_SKIPPED, LlamaServer
from tests.support.noted_load import NotedLoad, assert_told_once
from tests.support.processes import Process, Stage, wait_for
from tests.support.served import Served
from workers.demo import demo_model_path

pytestmark = [
    pytest.mark.skipif(not LLAMA_SERVER, reason=WHY_SKIPPED),
    pytest.mark.ways("direct", reason="what is behind the door does not depend on the way to it"),
    pytest.mark.timeout(1200),
]

#: How long the server is away, in seconds, and how many slots each server has.
AWAY_S, SLOTS = 20.0, 2
#: The time that a condition may take on a busy machine, in seconds.
PATIENCE_S = 240.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LlamaServer]:
    with LlamaServer(demo_model_path(), tmp_path, slots=SLOTS) as server:
        yield server


@pytest.fixture
def stage(tmp_path: Path, server: LlamaServer) -> Iterator[Stage]:
    environ = {
        "PENSTOCK_ENGINE": "upstream",
        "PENSTOCK_UPSTREAM_URL": server.url,
        "PENSTOCK_UPSTREAM_MODEL": "demo",
        "PENSTOCK_UPSTREAM_CONCURRENCY": str(SLOTS),
        "PENSTOCK_ADMISSION": "bounds",
        # A test may have to repeat its kill.
        "PENSTOCK_MAX_ATTEMPTS": "12",
    }
    with Stage(tmp_path, **environ) as stage:
        yield stage


def wait_for_answers(load: NotedLoad, number: int = 8) -> None:
    """Wait until this many more jobs have ended."""
    before = len(load.told)
    wait_for(lambda: load.check() or len(load.told) >= before + number, f"{number} answers", timeout_s=PATIENCE_S)


def kill_in_an_answer(server: LlamaServer, worker: Process) -> int:
    """Kill the server so that it cuts an answer. Return how many answers at most were cut.

    A kill between two answers cuts none. Then the server is started and killed again.
    """
    for kills in range(1, 11):
        wait_for(lambda: server.busy_slots() == SLOTS, "a busy server", timeout_s=PATIENCE_S)
        cut = len(worker.log_lines("upstream.lost"))
        away = len(worker.log_lines("upstream.away"))
        server.kill()
        wait_for(
            lambda cut=cut, away=away: (
                len(worker.log_lines("upstream.lost")) > cut or len(worker.log_lines("upstream.away")) > away
            ),
            "the worker to see that the server is away",
            timeout_s=PATIENCE_S,
        )
        if len(worker.log_lines("upstream.lost")) > cut:
            return kills * SLOTS
        server.start()
    raise AssertionError("no kill has cut an answer")


def test_a_server_that_is_killed_and_restarted_under_load_fails_no_job(stage: Stage, server: LlamaServer) -> None:
    worker = stage.worker()
    with Served(stage) as served, NotedLoad(served) as load:
        cut = 0
        for _ in range(2):
            wait_for_answers(load)
            cut += kill_in_an_answer(server, worker)
            server.start()
        wait_for_answers(load)
        assert_told_once(load.end(), stage, n_cut=cut)
        assert load.refused <= {"no_worker"}
        stage.assert_sound()


def test_a_server_that_is_away_for_20_s_under_load_fails_no_job(stage: Stage, server: LlamaServer) -> None:
    worker = stage.worker()
    with Served(stage) as served, NotedLoad(served) as load:
        wait_for_answers(load)
        cut = kill_in_an_answer(server, worker)
        killed_s = monotonic()
        wait_for(lambda: monotonic() - killed_s >= AWAY_S, "the time that the server is away", timeout_s=2 * AWAY_S)
        server.start()
        wait_for_answers(load)
        assert_told_once(load.end(), stage, n_cut=cut)
        assert load.refused <= {"no_worker"}
        stage.assert_sound()


def test_of_two_servers_of_a_pool_one_is_killed_under_load_and_no_job_fails(
    stage: Stage, server: LlamaServer, tmp_path: Path
) -> None:
    worker = stage.worker()
    folder = tmp_path / "other"
    folder.mkdir()
    with (
        LlamaServer(demo_model_path(), folder, slots=SLOTS) as other,
        Served(stage) as served,
    ):
        stage.worker(PENSTOCK_UPSTREAM_URL=other.url)
        with NotedLoad(served) as load:
            wait_for_answers(load)
            cut = kill_in_an_answer(server, worker)
            wait_for_answers(load, 16)
            wait_for(lambda: stage.view(worker) is None, "the worker without a server to be no longer live")
            assert_told_once(load.end(), stage, n_cut=cut)
        # The pool had a live worker at all times.
        assert load.refused == set()
        stage.assert_sound()

"""`penstock up` under kill -9: the next start takes over what the last one left."""

import psutil

from shared.state_dir import read_note
from tests.support.processes import wait_for
from tests.support.up import Up, is_gone


def test_a_killed_up_leaves_nothing_that_the_next_one_cannot_take_over(tmp_path):
    state = tmp_path / "state"
    with Up(state) as first:
        first.serving()
        running, waiting = first.submit(200), [first.submit(5) for _ in range(4)]
        first.running(running)
        port = first.url.rpartition(":")[2]
        first.process.kill()
        first.process.wait()
        assert first.children(), "its rooms live on"
        with Up(state, "--port", port) as second:
            second.serving()
            assert "store: taken over" in second.err
            assert "ending worker 1" in second.err
            assert "ending door" in second.err
            job = second.job(running, wait_ms=20_000)
            assert (job["status"], job["attempts"]) == ("succeeded", 1), "what ran was let end"
            assert [second.job(one, wait_ms=20_000)["status"] for one in waiting] == ["succeeded"] * 4
            second.interrupt()
            assert second.exit_code() == 0
        assert first.children() == []


def test_a_start_that_waits_for_a_store_that_hangs_heeds_ctrl_c(tmp_path):
    state = tmp_path / "state"
    with Up(state) as first:
        first.serving()
        store = first.room("valkey-server")
        first.process.kill()
        first.process.wait()
        store.suspend()
        with Up(state) as second:
            lock = state / "up.lock"
            wait_for(lambda: read_note(lock).get("pid") == second.process.pid, "the second to wait for the store")
            second.interrupt()
            assert second.exit_code(timeout_s=10) == 1
            assert second.err.splitlines()[-1] == "penstock: stopped before the store answered"
        store.resume()


def test_a_store_that_cannot_come_back_is_started_again_until_it_can(tmp_path):
    """Its manifest cannot be read for a while, as on a disk that fails; door and worker live on meanwhile."""
    manifest = tmp_path / "state" / "store" / "appendonlydir" / "appendonly.aof.manifest"
    with Up(tmp_path / "state") as up:
        up.serving()
        ended = up.submit(5)
        up.job(ended, wait_ms=20_000)
        rooms = {up.room(word).pid for word in ("gunicorn", "workers")}
        held = manifest.read_bytes()
        manifest.write_text("nonsense\n")
        up.room("valkey-server").kill()
        wait_for(lambda: up.err.count("valkey-server ended at once") > 1, "two starts in vain")
        assert up.ask("GET", f"/v1/jobs/{ended}")[0] == 503
        manifest.write_bytes(held)
        wait_for(lambda: up.ask("GET", f"/v1/jobs/{ended}")[0] == 200, "the store to be back")
        assert {up.room(word).pid for word in ("gunicorn", "workers")} == rooms
        up.interrupt()
        assert up.exit_code() == 0


def test_a_killed_store_comes_back_with_all_that_it_held(tmp_path):
    with Up(tmp_path / "state") as up:
        up.serving()
        ended = up.submit(5)
        up.job(ended, wait_ms=20_000)
        running, waiting = [up.submit(150), up.submit(150)], up.submit(5)
        for job_id in running:
            up.running(job_id)
        store: psutil.Process = up.room("valkey-server")
        store.kill()
        assert is_gone(store)
        for job_id in (ended, *running, waiting):
            job = {}
            while job.get("status") != "succeeded":
                status, job = up.ask("GET", f"/v1/jobs/{job_id}?wait_ms=20000")
                assert status in {200, 503}, job
        assert "store: died; starting it again" in up.err
        up.interrupt()
        assert up.exit_code() == 0

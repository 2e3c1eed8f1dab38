"""Tests of `penstock up` after kill -9 of itself or of its store: processes and jobs are taken over."""

import psutil

from shared.state_dir import read_note
from tests.support.processes import wait_for
from tests.support.up import Up, is_gone

#: Otherwise, the store keeps what it has acknowledged for up to two seconds during an fsync, and a kill loses it.
KEEPS_ALL = {"PENSTOCK_APPENDFSYNC": "always"}


def test_a_start_after_a_killed_up_takes_over_its_store_and_its_jobs(tmp_path):
    state = tmp_path / "state"
    with Up(state) as first:
        first.serving()
        running, waiting = first.submit(400), [first.submit(5) for _ in range(4)]
        first.wait_until_running(running)
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
            assert (job["status"], job["attempts"]) == ("succeeded", 1), "the job that ran was not allowed to finish"
            assert [second.job(one, wait_ms=20_000)["status"] for one in waiting] == ["succeeded"] * 4
            second.interrupt()
            assert second.exit_code() == 0
        assert first.children() == []


def test_ctrl_c_stops_a_start_that_waits_for_a_store_that_hangs(tmp_path):
    state = tmp_path / "state"
    with Up(state) as first:
        first.serving()
        store = first.child("valkey-server")
        first.process.kill()
        first.process.wait()
        store.suspend()
        with Up(state) as second:
            lock = state / "up.lock"
            wait_for(
                lambda: read_note(lock).get("pid") == second.process.pid,
                "the second `up` to hold the lock and wait for the store",
            )
            second.interrupt()
            assert second.exit_code(timeout_s=10) == 1
            assert second.err.splitlines()[-1] == "penstock: stopped before the store answered"
        store.resume()


def test_a_store_that_fails_to_start_is_started_again_until_it_succeeds(tmp_path):
    """The manifest is unreadable for a while, as on a failing disk; door and worker continue to run."""
    manifest = tmp_path / "state" / "store" / "appendonlydir" / "appendonly.aof.manifest"
    with Up(tmp_path / "state", **KEEPS_ALL) as up:
        up.serving()
        ended = up.submit(5)
        up.job(ended, wait_ms=20_000)
        rooms = {up.child(word).pid for word in ("web", "workers")}
        original = manifest.read_bytes()
        manifest.write_text("nonsense\n")
        up.child("valkey-server").kill()
        wait_for(lambda: up.err.count("valkey-server ended at once") > 1, "two failed starts")
        assert up.ask("GET", f"/v1/jobs/{ended}")[0] == 503
        manifest.write_bytes(original)
        wait_for(lambda: up.ask("GET", f"/v1/jobs/{ended}")[0] == 200, "the store to be back")
        assert {up.child(word).pid for word in ("web", "workers")} == rooms
        up.interrupt()
        assert up.exit_code() == 0


def test_a_killed_store_is_started_again_with_all_its_jobs(tmp_path):
    with Up(tmp_path / "state", **KEEPS_ALL) as up:
        up.serving()
        ended = up.submit(5)
        up.job(ended, wait_ms=20_000)
        running, waiting = [up.submit(300), up.submit(300)], up.submit(5)
        for job_id in running:
            up.wait_until_running(job_id)
        store: psutil.Process = up.child("valkey-server")
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

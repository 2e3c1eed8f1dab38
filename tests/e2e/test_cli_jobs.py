"""The commands that use the door, run as processes against a real door and a worker with the sim engine."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.audit.invariants import find_breaches
from shared.store.connection import open_client
from shared.store.embedded import EmbeddedStore
from tests.support.program import Program, Running, program
from tests.support.scripted_door import event_stream, json_answer, scripted_door

#: Generous, because a machine with two cores may be busy.
TIMEOUT_S = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(url: str) -> None:
    give_up_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health/ready", timeout=5):
                return
        except OSError:
            assert time.monotonic() < give_up_s, f"{url} is not ready"
            time.sleep(0.05)


def stop(process: Running) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The program, a door and a worker with one slot that makes 20 words a second; invariants hold afterwards."""
    state = tmp_path_factory.mktemp("state")
    store = EmbeddedStore.start(state)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = program(
        state,
        PENSTOCK_URL=url,
        PENSTOCK_AUTH="open",
        PENSTOCK_LISTEN=f"127.0.0.1:{port}",
        PENSTOCK_WEB_WORKERS="1",
        PENSTOCK_ENGINE="sim",
        # These tests are about output and exit codes; refusals by prediction and by work are tested elsewhere.
        PENSTOCK_ADMISSION="bounds",
        PENSTOCK_MAX_BATCH_SIZE="1",
        PENSTOCK_MAX_QUEUE_SIZE="2",
        PENSTOCK_MAX_QUEUE_TOKENS="100000",
        PENSTOCK_LOG_LEVEL="warning",
    )
    parts = [command.start("web"), command.start("worker")]
    try:
        wait_until_ready(url)
        yield command
        with open_client(store.url, name="test") as client:
            assert find_breaches(client) == []
    finally:
        for part in parts:
            stop(part)
        store.stop()


def submit_detached(penstock: Program, *arguments: str) -> str:
    """Submit a job without waiting for it; return its id."""
    done = penstock("submit", "a prompt", "--detach", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def job_status(penstock: Program, job_id: str, tenant: str) -> str:
    return str(json.loads(penstock("job", job_id, "--tenant", tenant, "--json").stdout)["status"])


def wait_for_status(penstock: Program, job_id: str, tenant: str, expected: str) -> None:
    give_up_s = time.monotonic() + TIMEOUT_S
    while (found := job_status(penstock, job_id, tenant)) != expected:
        assert time.monotonic() < give_up_s, f"{job_id} is still {found}"


def test_submit_prints_the_answer_on_stdout_and_progress_on_stderr(penstock: Program) -> None:
    done = penstock("submit", "Once upon a time", "--max-tokens", "3")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 3
    assert done.stdout.endswith("\n")
    assert "queued" in done.stderr or "running" in done.stderr


def test_submit_as_json_prints_the_job(penstock: Program) -> None:
    done = penstock("submit", "-", "--max-tokens", "2", "--seed", "7", "--json", stdin="Once\nupon a time")
    job = json.loads(done.stdout)
    assert (job["status"], job["finish_reason"], job["usage"]["completion_tokens"]) == ("succeeded", "length", 2)


def test_a_streamed_submit_prints_the_same_answer_as_a_plain_one(penstock: Program) -> None:
    whole = penstock("submit", "Once", "--max-tokens", "4")
    streamed = penstock("submit", "Once", "--max-tokens", "4", "--stream")
    assert streamed.returncode == 0, streamed.stderr
    assert streamed.stdout == whole.stdout


def test_a_streamed_submit_as_json_prints_one_event_per_line(penstock: Program) -> None:
    done = penstock("submit", "Once", "--max-tokens", "4", "--stream", "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[-1]["event"] == "ended"
    assert events[-1]["data"]["status"] == "succeeded"
    text = "".join(event["data"]["text"] for event in events if event["event"] == "token")
    assert text == events[-1]["data"]["text"]


def test_a_job_that_expires_prints_the_text_generated_so_far(penstock: Program) -> None:
    done = penstock("submit", "Once", "--max-tokens", "1000", "--deadline", "3s")
    assert done.returncode == 1
    assert 0 < len(done.stdout.split()) < 100
    assert "expired" in done.stderr


def test_a_refused_submit_exits_75_and_the_wait_option_retries_it(penstock: Program) -> None:
    ids = [submit_detached(penstock, "--max-tokens", "2000", "--tenant", "full") for _ in range(3)]
    refused = penstock("submit", "one more", "--tenant", "full")
    assert (refused.returncode, refused.stdout) == (75, "")
    assert "tenant_queue_full" in refused.stderr
    assert refused.stderr.count("retry in") == 1
    as_json = penstock("submit", "one more", "--tenant", "full", "--json")
    assert as_json.returncode == 75
    assert json.loads(as_json.stdout)["status"] == "yield"
    for job_id in ids:
        assert penstock("cancel", job_id, "--tenant", "full").returncode == 0
    waited = penstock("submit", "one more", "--max-tokens", "1", "--tenant", "full", "--wait", "60s")
    assert waited.returncode == 0, waited.stderr


def test_a_job_is_listed_shown_and_canceled(penstock: Program) -> None:
    running = submit_detached(penstock, "--max-tokens", "2000", "--tenant", "seen")
    wait_for_status(penstock, running, "seen", "running")
    waiting = submit_detached(penstock, "--max-tokens", "2000", "--tenant", "seen")

    page = json.loads(penstock("jobs", "--tenant", "seen", "--json").stdout)
    assert [job["id"] for job in page["data"]] == [waiting, running]
    table = penstock("jobs", "--tenant", "seen", "--status", "queued").stdout.splitlines()
    assert table[0].startswith("id\tstatus\t")
    assert [line.split("\t")[:2] for line in table[1:]] == [[waiting, "queued"]]
    shown = penstock("job", waiting, "--tenant", "seen").stdout
    assert f"id\t{waiting}\n" in shown
    assert "status\tqueued\n" in shown

    assert "canceled" in penstock("cancel", waiting, "--tenant", "seen").stdout
    assert penstock("cancel", running, "--tenant", "seen").returncode == 0
    wait_for_status(penstock, running, "seen", "canceled")
    again = penstock("cancel", running, "--tenant", "seen")
    assert again.returncode == 0
    assert "canceled" in again.stdout


def test_a_stream_does_not_print_text_again_after_a_lost_worker(tmp_path: Path) -> None:
    job = {"id": "j1", "status": "queued", "queue": {"position": 1}}
    ended = job | {"status": "succeeded", "queue": None, "text": "Once upon a time"}
    events = [("started", {"attempt": 1}), ("token", {"text": "Once"}), ("token", {"text": " upon"})]
    events += [
        ("started", {"attempt": 2}),
        ("token", {"text": "Once upon"}),
        ("token", {"text": " a"}),
        ("ended", ended),
    ]
    stream = "".join(f"event: {kind}\ndata: {json.dumps(data)}\n\n" for kind, data in events)
    with scripted_door(json_answer(202, job), event_stream(stream)) as door:
        done = program(tmp_path, PENSTOCK_URL=door.url)("submit", "x", "--stream")
    assert (done.returncode, done.stdout) == (0, "Once upon a time\n"), done.stderr


def test_a_stream_continues_printing_after_a_lost_worker_whose_tokens_are_kept(tmp_path: Path) -> None:
    job = {"id": "j1", "status": "queued", "queue": {"position": 1}}
    ended = job | {"status": "succeeded", "queue": None, "text": "Once upon a time"}
    events = [("started", {"attempt": 1}), ("token", {"text": "Once"})]
    events += [("started", {"attempt": 2, "resumed": True}), ("token", {"text": " upon a"}), ("ended", ended)]
    stream = "".join(f"event: {kind}\ndata: {json.dumps(data)}\n\n" for kind, data in events)
    with scripted_door(json_answer(202, job), event_stream(stream)) as door:
        done = program(tmp_path, PENSTOCK_URL=door.url)("submit", "x", "--stream")
    assert (done.returncode, done.stdout) == (0, "Once upon a time\n"), done.stderr


def test_a_second_attempt_with_a_different_answer_is_printed_in_full(tmp_path: Path) -> None:
    job = {"id": "j1", "status": "queued", "queue": {"position": 1}}
    ended = job | {"status": "succeeded", "queue": None, "text": "Long ago"}
    events = [
        ("token", {"text": "Once upon"}),
        ("started", {"attempt": 2}),
        ("token", {"text": "Long"}),
        ("ended", ended),
    ]
    stream = "".join(f"event: {kind}\ndata: {json.dumps(data)}\n\n" for kind, data in events)
    with scripted_door(json_answer(202, job), event_stream(stream)) as door:
        done = program(tmp_path, PENSTOCK_URL=door.url)("submit", "x", "--stream")
    assert (done.returncode, done.stdout) == (0, "Once upon\nLong ago\n")
    assert "the worker was lost" in done.stderr


def test_ctrl_c_cancels_the_job_that_the_command_waits_for(penstock: Program) -> None:
    process = penstock.start("submit", "Once", "--max-tokens", "2000", "--tenant", "gone", "--stream")
    try:
        assert process.stdout.read(1), "no text was printed"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    finally:
        if process.poll() is None:
            stop(process)
    assert process.returncode == 130
    assert "canceled" in stderr
    (job,) = json.loads(penstock("jobs", "--tenant", "gone", "--json").stdout)["data"]
    wait_for_status(penstock, job["id"], "gone", "canceled")


@pytest.mark.parametrize("job_id", ["nothing", "-h-is-no-option", "--nor-this"])
@pytest.mark.parametrize("command", ["job", "cancel"])
def test_an_unknown_job_id_is_reported_in_one_line(penstock: Program, command: str, job_id: str) -> None:
    done = penstock(command, job_id)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"no job '{job_id}'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_field_that_the_door_finds_invalid_is_named(penstock: Program) -> None:
    done = penstock("submit", "Once", "--deadline", "20d")
    assert done.returncode == 1
    assert "deadline_ms" in done.stderr


def test_an_unreachable_door_is_reported_with_its_address(tmp_path: Path) -> None:
    done = program(tmp_path, PENSTOCK_URL="http://127.0.0.1:1")("submit", "Once")
    assert (done.returncode, done.stdout) == (1, "")
    assert "http://127.0.0.1:1" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_doctor_finds_that_all_invariants_hold_in_a_running_system(penstock: Program) -> None:
    job_id = submit_detached(penstock, "--max-tokens", "2000", "--tenant", "doctor")
    done = penstock("doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["verdict"] for row in json.loads(done.stdout)["invariants"]} == {"holds"}
    assert penstock("cancel", job_id, "--tenant", "doctor").returncode == 0


def test_a_job_runs_again_if_the_requests_of_its_tenant_are_kept(penstock: Program) -> None:
    assert penstock("tenants", "set", "keeper", "--run-again").returncode == 0
    done = penstock("submit", "a prompt", "--max-tokens", "3", "--tenant", "keeper", "--json")
    first = json.loads(done.stdout)["id"]
    new = penstock("again", first, "--tenant", "keeper")
    assert new.returncode == 0, new.stderr
    assert new.stdout.strip() != first
    wait_for_status(penstock, new.stdout.strip(), "keeper", "succeeded")
    other = submit_detached(penstock, "--max-tokens", "1", "--tenant", "other")
    wait_for_status(penstock, other, "other", "succeeded")
    refused = penstock("again", other, "--tenant", "other")
    assert (refused.returncode, "are not kept" in refused.stderr) == (1, True)

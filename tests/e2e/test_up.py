"""`penstock up` from start to stop: the commands it prints work, and it stops in order."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import psutil
import pytest

from tests.support.processes import wait_for
from tests.support.program import COMMAND
from tests.support.up import Up
from tests.support.upstream_server import UpstreamServer


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One stack that requires API keys, for the tests that only use it."""
    with Up(tmp_path_factory.mktemp("up") / "state", PENSTOCK_AUTH="required") as up:
        yield up.serving()


def printed_block(up: Up, title: str) -> str:
    """Return the lines that were printed under a title, up to the next empty line."""
    found = re.search(rf"^{re.escape(title)}:\n\n((?:.+\n)+)", up.out + "\n", re.MULTILINE)
    assert found, up.out
    return found[1]


def with_this_command(up: Up, line: str) -> str:
    """Replace the printed command by one that works where `penstock` is not installed beside Python."""
    printed = re.search(r"[^\s(]*penstock(?= keys| submit)", line)
    return line.replace(printed[0], " ".join(COMMAND)) if printed else line


def with_key(up: Up, line: str) -> subprocess.CompletedProcess[str]:
    """Run the printed line that creates a key, then `line`, in one shell."""
    make_key = with_this_command(up, printed_block(up, "Create an API key for the tenant `default`"))
    environ = {name: value for name, value in up.environ.items() if name != "PENSTOCK_STATE_DIR"}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", make_key + line],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_printed_curl_line_answers_with_the_ended_job(serving):
    if not shutil.which("curl"):
        pytest.skip("no curl on this machine")
    done = with_key(serving, printed_block(serving, "Submit a job and wait for its end"))
    assert '"status":"succeeded"' in done.stdout.replace(" ", ""), done


def test_the_printed_snippet_chats_through_the_openai_package(serving, tmp_path):
    pasted = tmp_path / "pasted"
    pasted.write_text(printed_block(serving, "The same in Python, after `pip install openai`"))
    # With -i, Python reads the lines as those that a user pastes at its prompt.
    done = with_key(serving, f"{sys.executable} -q -i -W ignore < {pasted}")
    assert "Error" not in done.stderr, done
    assert done.returncode == 0, done
    assert done.stdout.strip(), "an answer"


def test_the_printed_command_submits_and_prints_the_answer(serving):
    line = with_this_command(serving, printed_block(serving, "The same with this command"))
    done = with_key(serving, line)
    assert done.returncode == 0, done
    assert done.stdout.strip(), "an answer"


def test_log_lines_go_to_stderr_and_not_to_stdout(serving):
    assert "worker.claiming" in serving.err
    assert "worker.claiming" not in serving.out


@pytest.fixture(scope="module")
def open_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A stack on loopback with two workers, for the tests after which it serves as before."""
    with Up(tmp_path_factory.mktemp("open") / "state", "--port", "0", "--workers", "2") as up:
        yield up.serving()


def test_on_loopback_the_door_is_open_and_the_printed_lines_need_no_key(open_stack):
    assert "PENSTOCK_API_KEY" not in open_stack.out
    answer = open_stack.ask("POST", "/v1/jobs?wait_ms=20000", {"prompt": "once", "max_tokens": 5})[1]
    assert answer["status"] == "succeeded"


def test_when_no_model_is_named_the_demo_model_answers_in_words(tmp_path):
    with Up(tmp_path / "state", PENSTOCK_ENGINE="llama") as up:
        up.serving()
        body = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}
        job = up.ask("POST", "/v1/jobs?wait_ms=30000", body)[1]
        assert (job["status"], job["model"]) == ("succeeded", "penstock-demo")
        assert len(re.findall(r"[a-z]{2,}", job["text"])) > 4
        assert [file.name for file in (up.state / "models").iterdir()] == ["penstock-demo.gguf"]


def test_ctrl_c_lets_running_jobs_end_refuses_new_ones_and_keeps_queued_jobs(tmp_path):
    state = tmp_path / "state"
    with Up(state, PENSTOCK_SIM_DECODE_TPS="30") as up:
        up.serving()
        # The long job lasts for two minutes, so that the drain does not end before everything was asked.
        running = [up.submit(150), long := up.submit(3_500, deadline_ms=300_000)]
        waiting = up.submit(5)
        for job_id in running:
            up.wait_until_running(job_id)
        assert up.job(waiting)["status"] == "queued"
        up.interrupt()
        wait_for(lambda: "stopping" in up.err, "the drain to begin")
        status, refused = up.ask("POST", "/v1/jobs", {"prompt": "once", "max_tokens": 5})
        assert (status, refused["reason"]) == (503, "draining")
        assert up.ask("GET", "/health/ready")[1]["reason"] in {None, "draining"}, "it may be a second old"
        assert up.job(running[0], wait_ms=20_000)["status"] == "succeeded"
        assert up.ask("DELETE", f"/v1/jobs/{long}")[0] == 200
        assert up.exit_code() == 0
        assert up.children() == [], "no process is left"
    with Up(state) as up:
        up.serving()
        assert [up.job(job_id)["status"] for job_id in running] == ["succeeded", "canceled"]
        assert [up.job(job_id)["attempts"] for job_id in running] == [1, 1]
        assert up.job(waiting, wait_ms=20_000)["status"] == "succeeded"
        assert up.job(up.submit(5), wait_ms=20_000)["status"] == "succeeded", "jobs are admitted again"


def test_ctrl_c_tells_calls_whose_jobs_are_queued_that_the_server_stops(tmp_path):
    chat = {"messages": [{"role": "user", "content": "once"}], "max_tokens": 5}
    patience = {"PENSTOCK_DEFAULT_START_MS": "600000", "PENSTOCK_DEFAULT_DEADLINE_MS": "600000"}
    slow = {"PENSTOCK_MAX_BATCH_SIZE": "1", "PENSTOCK_SIM_DECODE_TPS": "10"}
    with Up(tmp_path / "state", **slow, **patience) as up, ThreadPoolExecutor(2) as pool:
        url = f"{up.serving().url}/v1/chat/completions"
        # It lasts for three minutes.
        long = up.submit(1_900)
        up.wait_until_running(long)
        calls = [pool.submit(httpx.post, url, json=chat | {"stream": on}, timeout=600) for on in (True, False)]
        wait_for(lambda: up.counts() == (2, 1), "the calls to be queued", timeout_s=60)
        up.interrupt()
        wait_for(lambda: "stopping" in up.err, "the drain to begin", timeout_s=60)
        assert up.ask("DELETE", f"/v1/jobs/{long}")[0] == 200
        for call in calls:
            # A call that is cut off after the door's 30 s gets no answer.
            answer = call.result()
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
            assert answer.headers["x-should-retry"] == "true"
            assert int(answer.headers["retry-after-ms"]) > 0
        assert up.exit_code(timeout_s=120) == 0
    with Up(tmp_path / "state") as up:
        assert [job["status"] for job in up.serving().ask("GET", "/v1/jobs")[1]["data"]] == ["canceled"] * 3


def test_a_second_ctrl_c_stops_up_at_once_and_the_next_start_runs_the_job_again(tmp_path):
    state = tmp_path / "state"
    with Up(state, PENSTOCK_SIM_DECODE_TPS="60", PENSTOCK_MAX_INFLIGHT="3") as up:
        up.serving()
        # It would last for a minute.
        job_id = up.submit(3_500, deadline_ms=300_000)
        up.wait_until_running(job_id)
        up.interrupt()
        wait_for(lambda: "stopping" in up.err, "the drain to begin")
        up.interrupt()
        assert up.exit_code(timeout_s=20) == 0
        assert up.children() == []
    # The next start may change the bounds of the previous one.
    with Up(state, PENSTOCK_SIM_DECODE_TPS="5000", PENSTOCK_MAX_INFLIGHT="7") as up:
        up.serving()
        job = up.job(job_id, wait_ms=20_000)
        assert (job["status"], job["attempts"]) == ("succeeded", 2)
        up.process.send_signal(signal.SIGTERM)
        assert up.exit_code() == 0


def workers_of(up: Up) -> list[psutil.Process]:
    return [one for one in up.children() if "workers" in one.cmdline()]


def test_several_workers_run_side_by_side(open_stack):
    assert len(workers_of(open_stack)) == 2


def test_workers_that_die_are_restarted_and_their_job_ends(open_stack):
    job_id = open_stack.submit(400)
    open_stack.wait_until_running(job_id)
    for worker in workers_of(open_stack):
        worker.kill()
    job = open_stack.job(job_id, wait_ms=30_000)
    assert (job["status"], job["attempts"]) == ("succeeded", 2)
    for number in (1, 2):
        assert f"worker {number} was killed by SIGKILL; starting it again" in open_stack.err


def test_a_door_that_dies_is_restarted(open_stack):
    def answers() -> bool:
        with suppress(OSError):
            return open_stack.ask("GET", "/health")[0] == 200
        return False

    os.killpg(open_stack.child("web").pid, signal.SIGKILL)
    wait_for(lambda: "door was killed by SIGKILL" in open_stack.err and answers(), "the door to be back", timeout_s=60)


def test_up_in_front_of_a_server_that_loads_its_model_needs_only_its_address_and_serves_once_it_is_warm(tmp_path):
    with UpstreamServer() as server, Up(tmp_path / "state", "--port", "0", "--upstream", server.url) as up:
        # Such a server lists the model already.
        server.will(*["loading"] * 10_000)
        wait_for(lambda: "to load 'm' (503 Loading model)" in up.err, "up to say what it waits for", timeout_s=120)
        wait_for(lambda: "upstream.answers" in up.err, "the worker to see the list of models", timeout_s=120)
        assert up.out == ""
        server.behaviours.clear()
        messages = [{"role": "user", "content": "hello"}]
        status, answer = up.serving().ask("POST", "/v1/chat/completions", {"model": "m", "messages": messages})
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "w0 w1 w2 ")
        *warming, asked = server.bodies
        assert {body["max_tokens"] for body in warming} == {1}
        assert asked["messages"] == messages

"""Ctrl-C in a command: exit code 130, no traceback, and a line that says what becomes of the job."""

import signal
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.support.processes import wait_for
from tests.support.program import COMMAND, ROOT, Running, program
from tests.support.scripted_door import Answer, ScriptedDoor, json_answer, scripted_door

#: Generous, because a machine with two cores may be busy.
TIMEOUT_S = 60
JOB = {"id": "j1", "status": "queued", "queue": {"position": 1}}
#: Sends SIGINT to the process when it begins to import the module that INTERRUPTED_AT names.
INTERRUPTS_IMPORT = """
import os, signal, sys

class Interrupts:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == os.environ["INTERRUPTED_AT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts)
"""


def first_words_then_silence(released: threading.Event) -> Answer:
    """Return a stream with a piece of text that then sends nothing until `released` is set."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        handler.wfile.write(b'event: token\ndata: {"text": "Once"}\n\n')
        handler.wfile.flush()
        released.wait(TIMEOUT_S)

    return answer


def silence(released: threading.Event) -> Answer:
    def answer(_handler: BaseHTTPRequestHandler) -> None:
        released.wait(TIMEOUT_S)

    return answer


def interrupted_stream(
    folder: Path, *to_cancel: Answer, then: Callable[[ScriptedDoor, Running], None] | None = None
) -> tuple[int, str]:
    """Press Ctrl-C in `submit --stream` after its first text; return the exit code and what is on stderr."""
    released = threading.Event()
    with scripted_door(json_answer(202, JOB), first_words_then_silence(released), *to_cancel) as door:
        process = program(folder, PENSTOCK_URL=door.url).start("submit", "x", "--stream", "--tenant", "blue")
        try:
            assert process.stdout.read(1), "no text was printed"
            process.send_signal(signal.SIGINT)
            if then is not None:
                then(door, process)
            _, stderr = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
            released.set()
    return process.returncode, stderr


def test_ctrl_c_cancels_the_job_and_says_how_to_see_its_text(tmp_path):
    code, stderr = interrupted_stream(tmp_path, json_answer(200, JOB | {"status": "canceled"}))
    assert code == 130
    assert stderr.splitlines()[-1] == "canceled job j1; `penstock job j1 --tenant blue` shows the text so far"
    assert "Traceback" not in stderr


def test_ctrl_c_after_the_end_of_the_job_says_how_it_ended(tmp_path):
    code, stderr = interrupted_stream(tmp_path, json_answer(200, JOB | {"status": "succeeded"}))
    assert code == 130
    assert "job j1 had already ended: succeeded; `penstock job j1 --tenant blue` shows it" in stderr


def test_if_the_door_cannot_cancel_the_job_the_user_is_told_that_it_continues(tmp_path):
    failed = json_answer(500, {"error": {"message": "out of order", "code": "internal_error"}})
    code, stderr = interrupted_stream(tmp_path, failed)
    assert code == 130
    assert (
        "job j1 continues, `penstock cancel j1 --tenant blue` cancels it: the door answered 500: out of order" in stderr
    )
    assert "Traceback" not in stderr


def test_a_second_ctrl_c_does_not_wait_for_the_cancel(tmp_path):
    released = threading.Event()

    def press_again(door: ScriptedDoor, process: Running) -> None:
        wait_for(lambda: len(door.requests) == 3, "the request to cancel", timeout_s=TIMEOUT_S)
        process.send_signal(signal.SIGINT)

    try:
        code, stderr = interrupted_stream(tmp_path, silence(released), then=press_again)
    finally:
        released.set()
    assert code == 130
    assert stderr.splitlines()[-1] == "job j1 continues, `penstock cancel j1 --tenant blue` cancels it"
    assert "Traceback" not in stderr


def test_ctrl_c_before_the_door_has_answered_says_where_an_admitted_job_is_listed(tmp_path):
    released = threading.Event()
    with scripted_door(silence(released)) as door:
        process = program(tmp_path, PENSTOCK_URL=door.url).start("submit", "x")
        try:
            wait_for(lambda: door.requests, "the job to be submitted", timeout_s=TIMEOUT_S)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
            released.set()
    assert process.returncode == 130
    assert stderr == "stopped before the door said that the job is admitted; if it was, `penstock jobs` lists it\n"


@pytest.mark.parametrize("module", ["typer", "shared.cli.command_line", "shared.cli.commands.tenants", "redis"])
def test_ctrl_c_while_a_command_imports_its_modules_leaves_no_traceback(tmp_path, store_url, module):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS_IMPORT)
    environ = dict(program(tmp_path, REDIS_URL=store_url, INTERRUPTED_AT=module).environ)
    done = subprocess.run(
        [*COMMAND, "tenants", "ls"],
        env=environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")

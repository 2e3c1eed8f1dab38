"""Tests that no command ends in a traceback or loses an answer because its output cannot be written or encoded."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shared.accounts.api_keys import ApiKeys
from shared.store.store import Store
from tests.support.program import Program, program
from tests.support.scripted_door import Answer, event_stream, json_answer, scripted_door

JOB_ID = "abcdefghijklmnopqrstuv"
TEXT = "grün 🙂 Ω"
QUEUED = {"id": JOB_ID, "status": "queued", "tenant": "blue"}
ENDED = QUEUED | {"status": "succeeded", "text": TEXT, "finish_reason": "stop"}


def polled() -> list[Answer]:
    return [json_answer(202, QUEUED), json_answer(200, ENDED)]


def streamed() -> list[Answer]:
    frames = [("started", {"attempt": 1}), ("token", {"text": TEXT, "tokens": 1}), ("ended", ENDED)]
    text = "".join(f"id: {i}\nevent: {kind}\ndata: {json.dumps(data)}\n\n" for i, (kind, data) in enumerate(frames))
    return [json_answer(202, QUEUED), event_stream(text)]


def run(answers: Sequence[Answer], tmp_path: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess:
    """Run `penstock submit`; its environment is that of the options' `environ`, and its streams are the options'."""
    with scripted_door(*answers) as door:
        penstock = program(tmp_path, PENSTOCK_URL=door.url, **options.pop("environ", {}))
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        command = penstock.command("submit", "hi", *arguments)
        return subprocess.run(command, env=penstock.environ, timeout=60, check=False, **streams)


@pytest.mark.parametrize(
    ("encoding", "shown", "arguments"),
    [("latin-1", "grün ? ?", ()), ("ascii", "gr?n ? ?", ("--stream",)), ("cp1252", "grün ? ?", ())],
)
def test_characters_that_the_output_cannot_have_are_replaced(tmp_path, encoding, shown, arguments) -> None:
    answers = streamed() if arguments else polled()
    done = run(answers, tmp_path, *arguments, environ={"PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stdout.decode(encoding)) == (0, f"{shown}\n")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(("encoding", "arguments"), [("latin-1", ("--json",)), ("ascii", ("--stream", "--json"))])
def test_json_loses_no_character_whatever_the_encoding(tmp_path, encoding, arguments) -> None:
    is_stream = "--stream" in arguments
    answers = streamed() if is_stream else polled()
    done = run(answers, tmp_path, *arguments, environ={"PYTHONIOENCODING": encoding})
    written = done.stdout.decode(encoding)
    ended = json.loads(written.splitlines()[-1])["data"] if is_stream else json.loads(written)
    assert (done.returncode, ended["text"]) == (0, TEXT)


def assert_one_line(code: int, notes: str, why: str) -> None:
    lines = [line for line in notes.splitlines() if line not in {"queued", "running", "succeeded"}]
    assert code == 1, notes
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"penstock: stdout {why}"), lines


@pytest.mark.parametrize("arguments", [(), ("--stream",), ("--detach",)])
def test_a_full_disk_costs_one_line_that_says_how_to_read_the_answer(tmp_path, arguments) -> None:
    answers = streamed() if "--stream" in arguments else polled()
    with scripted_door(*answers) as door, Path("/dev/full").open("wb") as full:
        done = program(tmp_path, PENSTOCK_URL=door.url)("submit", "hi", *arguments, stdout=full)
    assert_one_line(done.returncode, done.stderr, "cannot be written: No space left on device")
    assert f"`penstock job {JOB_ID}` shows the answer" in done.stderr


@pytest.mark.parametrize("arguments", [("--stream",), ("--json",)])
def test_a_closed_output_costs_one_line_that_says_how_to_read_the_answer(tmp_path, arguments) -> None:
    answers = streamed() if "--stream" in arguments else polled()
    done = run(answers, tmp_path, *arguments, stdout=None, preexec_fn=lambda: os.close(1))
    assert_one_line(done.returncode, done.stderr.decode(), "is closed, so nothing can be written")
    assert f"`penstock job {JOB_ID}` shows the answer".encode() in done.stderr


def test_notes_that_cannot_be_written_do_not_cost_the_answer(tmp_path) -> None:
    with scripted_door(*polled()) as door, Path("/dev/full").open("wb") as full:
        shown = program(tmp_path, PENSTOCK_URL=door.url)("submit", "hi", stderr=full)
    assert (shown.returncode, shown.stdout) == (0, f"{TEXT}\n")
    done = run(polled(), tmp_path, stderr=None, preexec_fn=lambda: os.close(2))
    assert (done.returncode, done.stdout.decode()) == (0, f"{TEXT}\n")


@pytest.fixture
def penstock(store: Store, store_url: str, tmp_path: Path) -> Program:
    return program(tmp_path, REDIS_URL=store_url)


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("usage", "--csv"), ("redis", "PING"), ("doctor",)],
)
def test_no_other_command_leaves_a_traceback_on_a_full_disk(penstock: Program, arguments) -> None:
    with Path("/dev/full").open("wb") as full:
        done = penstock(*arguments, stdout=full)
    assert done.returncode == 1
    assert "penstock: stdout cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_key_that_was_not_shown_is_named_so_that_it_can_be_removed(penstock: Program, store: Store) -> None:
    with Path("/dev/full").open("wb") as full:
        done = penstock("keys", "add", "blue", stdout=full)
    _, (record,) = ApiKeys(store.client).ls()
    assert done.returncode == 1
    assert f"remove it with `penstock keys rm {record.id}`" in done.stderr


def test_a_closed_stdin_is_an_empty_prompt(tmp_path) -> None:
    penstock = program(tmp_path)
    done = subprocess.run(
        penstock.command("submit", "-"),
        env=penstock.environ,
        stdin=None,
        capture_output=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: os.close(0),
    )
    assert (done.returncode, done.stderr) == (2, b"penstock: prompt='' is empty\n")

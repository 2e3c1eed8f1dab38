"""A store that accepts connections and never answers: commands and a worker say so, with the store's address."""

import socket
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from shared.cli.reach import FAULT
from tests.support.processes import Process, wait_for
from tests.support.program import program

pytestmark = pytest.mark.timeout(120)

#: Commands that read from the store, that change it, and that start everything.
COMMANDS = [["doctor"], ["keys", "add", "blue"], ["up", "--engine=sim", "--port=0"]]


def test_a_store_that_never_answers_is_named_by_every_start_and_command(tmp_path: Path) -> None:
    with ExitStack() as stack:
        silent = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0), backlog=256)))
        port = silent.getsockname()[1]
        named = f"redis://me:***@127.0.0.1:{port}/0"
        penstock = program(tmp_path, REDIS_URL=f"redis://me:secret@127.0.0.1:{port}/0")

        def start(*arguments: str, **settings: str) -> Process:
            log = tmp_path / f"{arguments[-1]}.log"
            process = Process(list(arguments), dict(penstock.with_env(**settings).environ), log)
            stack.callback(process.end)
            return process

        commands = [start(*penstock.command(*words)) for words in COMMANDS]
        worker = start(sys.executable, "-P", "-m", "workers", PENSTOCK_ENGINE="sim", PENSTOCK_LOG_FORMAT="json")
        for process in commands:
            assert process.exit_code(timeout_s=60) == FAULT
            assert len(process.log.read_text().splitlines()) == 1, process.log.read_text()
        for process in (*commands, worker):
            line = wait_for(lambda process=process: process.log_lines(named), "the store to be named", timeout_s=60)[0]  # type: ignore[misc]
            assert "does not answer" in line
            assert "Traceback" not in process.log.read_text()
            assert "secret" not in process.log.read_text()
        assert worker.alive, "a store that is back is used without a start by hand"

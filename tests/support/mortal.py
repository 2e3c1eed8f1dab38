"""A process that is killed before one of its commands to the store, in the test's own process."""

import threading
from typing import Any

import pytest
import redis


class Killed(BaseException):
    """The process ends before its next command to the store."""


class Mortal:
    """Lets the process that uses a client end before one of the commands of the thread that creates this object.

    Its other threads read the store at times that depend on the machine: their commands are not counted.
    """

    def __init__(self, client: redis.Redis, patch: pytest.MonkeyPatch) -> None:
        #: How many more commands are sent before the process ends; None if it does not.
        self.commands_left: int | None = None
        execute, counted = client.execute_command, threading.current_thread()

        def execute_if_alive(*arguments: Any, **options: Any) -> Any:
            if self.commands_left is not None:
                self.commands_left -= threading.current_thread() is counted
                if self.commands_left < 0:
                    raise Killed
            return execute(*arguments, **options)

        patch.setattr(client, "execute_command", execute_if_alive)
        # The process's other threads end with it. Nobody waits for them, so pytest would report their ends as faults.
        report = threading.excepthook
        patch.setattr(threading, "excepthook", lambda end: None if end.exc_type is Killed else report(end))

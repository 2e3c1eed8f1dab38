"""The process that holds a model: an ordinary worker, which ends when this process does."""

import os
import subprocess
import sys
import time
from dataclasses import replace

from shared.settings.settings import Settings, as_environ
from workers.place import WorkerPlace


class Child:
    """A worker process with one model. The constructor starts it."""

    def __init__(self, settings: Settings, model: str, name: str, place: WorkerPlace) -> None:
        """`model` is what PENSTOCK_MODEL would be, and `name` is its served name."""
        self.name = name
        #: When the process was started, by the monotonic clock.
        self.started_s = time.monotonic()
        self.stopping = False
        own = replace(settings, models="", model=model, model_name=name, drain_grace_ms=settings.max_deadline_ms)
        grace_s = settings.drain_grace_ms / 1000
        command = [sys.executable, "-P", "-m", "workers", *place.arguments, f"--drain-with-stdin={grace_s}"]
        # The child stays in this process's group, so that `penstock up` kills both at a second Ctrl-C. It ignores a
        # terminal's Ctrl-C, which this process answers. If this process is killed alone, the kernel closes the pipe,
        # and the child drains.
        self._process = subprocess.Popen(command, env=os.environ | as_environ(own), stdin=subprocess.PIPE)

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Let the running jobs end, and claim no others. A second call ends the process without waiting for them."""
        self.stopping = True
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

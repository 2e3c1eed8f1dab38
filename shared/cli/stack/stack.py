"""The whole stack on one machine, from the lock on its folder to the stop of its store.

Starts the rooms as processes and never imports them. In the order of the start: the folder's lock,
the embedded store, what an earlier start left behind, the door, the workers. The stop asks the door
first, so that nothing new comes in, then the workers, and stops the store when the last has written
what it had.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import replace
from http.client import HTTPConnection, HTTPException
from types import FrameType

import redis

from shared.cli import output
from shared.cli.reach import FAULT
from shared.cli.stack.addresses import reachable, refuse_taken
from shared.cli.stack.greeting import greeting
from shared.cli.stack.processes import ManagedProcess, ManagedProcesses, end_leftovers
from shared.cli.stack.store_keeper import StoreKeeper
from shared.errors import PenstockError
from shared.settings.settings import Settings, as_environ
from shared.state_dir import hold_state
from shared.store.connection import OPERATOR, open_client
from shared.store.embedded import EmbeddedStore
from shared.store.preflight import check_fitness
from shared.store.store import Store

#: How often the main loop looks at its processes; also the longest that Ctrl-C waits to be seen.
LOOK_S = 0.1
#: How often a start that takes long says what it waits for.
SAY_S = 10.0
#: What a room may take beyond the drain's grace: to write its last line.
LAST_WORDS_S = 10.0
#: Exit codes by which a room says that the next start would end the same way: a wrong setting, an
#: unfit store, a store with other system-wide settings (workers/exit_codes.py and web/runtime/start.py name them).
HOPELESS = frozenset({2, 3, 7})


class Stack:
    """One `penstock up`, from the lock on its folder to the stop of its store."""

    def __init__(self, settings: Settings, workers: int, *, take_over: bool) -> None:
        self._settings, self._workers, self._take_over = settings, workers, take_over
        self._state = settings.state_path
        self._rooms = ManagedProcesses(self._state, say)
        self._embedded: EmbeddedStore | None = None
        self._keeper: StoreKeeper | None = None
        self._signals: list[int] = []
        host, port = settings.listen_host_port
        self._connect_to = (reachable(host), port)
        shown = f"[{self._connect_to[0]}]" if ":" in self._connect_to[0] else self._connect_to[0]
        self._url = f"http://{shown}:{port}"

    def run(self) -> int:
        """Start everything, serve, stop everything. The exit code. Raises PenstockError when a start fails."""
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if sign is not signal.SIGHUP or signal.getsignal(sign) is not signal.SIG_IGN:  # as nohup wants it
                signal.signal(sign, self._on_signal)
        lock = hold_state(self._state, self._url)
        try:
            if not self._settings.redis_url:
                self._embedded = EmbeddedStore.start(
                    self._state, lock=lock, appendfsync=self._settings.appendfsync, given_up=self._stopping
                )
                self._keeper = StoreKeeper(self._embedded, say, self._stopping)
                self._settings = replace(self._settings, redis_url=self._embedded.url)
                say(f"store: {'taken over' if self._embedded.adopted else 'started'} in {self._state}")
            end_leftovers(self._state, self._grace_s, say, self._impatient)
            return self._serve()
        finally:
            self._rooms.stop(self._grace_s, self._impatient)
            if self._embedded is not None:
                self._embedded.stop()
                say("store: stopped")
            elif self._settings.redis_url:  # else the store had the lock, and let go of it when it failed
                lock.close()

    def _serve(self) -> int:
        refuse_taken(*self._settings.listen_host_port, "--port")
        if self._settings.gate_listen:
            refuse_taken(*self._settings.gate_host_port, "--gate-port")
        with open_client(self._settings.redis_url, name="penstock-up", timeouts=OPERATOR) as client:
            self._configure(client)
            self._settings = _with_model(self._settings)
            for room in self._parts():
                self._rooms.start(room)
                say(f"{room.name}: started")
            serving, began_s, said_s = False, time.monotonic(), time.monotonic()
            while not self._signals:
                hopeless = self._rooms.tend(serving=serving)
                if hopeless:
                    say(f"{hopeless}; its own words stand above. Stopping.")
                    return FAULT
                if self._keeper is not None:
                    self._keeper.tend()
                if not serving:
                    reason = self._not_ready()
                    serving = not reason
                    if serving:
                        self._greet(client)
                    elif time.monotonic() - said_s > SAY_S:
                        said_s = time.monotonic()
                        say(f"not ready after {said_s - began_s:.0f} s: {reason}")
                time.sleep(LOOK_S)
        say("stopping: what runs may end; Ctrl-C again ends it at once")
        return 0

    def _configure(self, client: redis.Redis) -> None:
        """Check the store and write the system-wide settings.

        A store that we have just started has nobody else at work in it, so that its settings are ours
        to replace; with any other, another process may go by the old ones.
        """
        for doubt in check_fitness(client):
            say(doubt)
        alone = self._embedded is not None and not self._embedded.adopted
        Store(client).configure(self._settings, take_over=self._take_over or alone)

    def _parts(self) -> list[ManagedProcess]:
        python = sys.executable
        parts = [
            ManagedProcess(
                "door",
                [python, "-m", "gunicorn", "-c", "python:web.gunicorn_conf", "web.wsgi:app"],
                os.environ | as_environ(self._settings),
                HOPELESS,
            )
        ]
        if self._settings.gate_listen:
            environ = os.environ | as_environ(self._settings)
            parts.append(ManagedProcess("gate", [python, "-m", "web.gate"], environ, HOPELESS))
        for index in range(self._workers):
            environ = os.environ | as_environ(_worker_settings(self._settings, index))
            place = [f"--index={index}", f"--workers={self._workers}"]
            parts.append(ManagedProcess(f"worker {index + 1}", [python, "-m", "workers", *place], environ, HOPELESS))
        return parts

    def _not_ready(self) -> str:
        """Why the door does not serve yet, or ""."""
        headers = {}
        if self._settings.allowed_hosts:
            headers["Host"] = self._settings.allowed_hosts.split(",")[0].strip()
        with closing(HTTPConnection(*self._connect_to, timeout=1.0)) as connection:
            try:
                connection.request("GET", "/health/ready", headers=headers)
                answer = connection.getresponse()
                body = answer.read(500).decode(errors="replace").strip()
            except (OSError, HTTPException) as error:
                return f"the door does not answer yet ({error})"
        if answer.status != 200:
            return f"the door says {answer.status} {body}"
        return self._gate_not_ready()

    def _gate_not_ready(self) -> str:
        """Why the gate does not take connections yet, or ""; "" too where there is none."""
        if not self._settings.gate_listen:
            return ""
        host, port = self._settings.gate_host_port
        try:
            socket.create_connection((reachable(host), port), timeout=1.0).close()
        except OSError as error:
            return f"the gate does not answer yet ({error})"
        return ""

    def _greet(self, client: redis.Redis) -> None:
        models = [worker.model for worker in Store(client).snapshot().workers if worker.live]
        with suppress(OSError):
            output.data(greeting(self._settings, self._url, models[0] if models else "the model"))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    def _stopping(self) -> bool:
        return bool(self._signals)

    def _impatient(self) -> bool:
        return len(self._signals) > 1

    @property
    def _grace_s(self) -> float:
        return self._settings.drain_grace_ms / 1000 + LAST_WORDS_S


def say(text: str) -> None:
    """Write a line on stderr; a terminal that was closed does not keep us from stopping in order."""
    with suppress(OSError):
        output.note(f"penstock: {text}")


def _worker_settings(settings: Settings, index: int) -> Settings:
    """Of worker `index` on this machine: its own address. Devices and cores it shares out by itself."""
    host, _, port = settings.worker_listen.rpartition(":")
    return replace(settings, worker_listen=f"{host}:{int(port) + index}") if port and port != "0" else settings


def _with_model(settings: Settings) -> Settings:
    """With the demo model when the engine needs a model and none is named.

    It is written at every start, in a second, so that a newer Penstock does not serve an older one's.
    """
    if settings.model or settings.engine == "sim":
        return settings
    path = settings.state_path / "models" / "penstock-demo.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    say(f"demo model: {path}")
    command = [sys.executable, "-m", "workers.demo", str(draft)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    if done.returncode or not draft.is_file():
        draft.unlink(missing_ok=True)
        raise PenstockError(f"the demo model could not be written ({' '.join(command)}); name one with --model")
    draft.replace(path)
    return replace(settings, model=str(path))

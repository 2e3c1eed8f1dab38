"""Runs the stack of `penstock up` on one machine: the embedded store, the door, the gate and the workers.

The door, the gate and the workers run as child processes; this package never imports their code. A start locks the
state folder, starts the embedded store, ends the processes that an earlier `up` left behind, and then starts the door,
the gate and the workers, in this order. A stop lets the door refuse new jobs, stops the workers, and then the door and
the gate. The store is stopped last, after every worker has written its results.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

import redis

from shared.accounts.admin_actions import local_actor, record
from shared.accounts.workers import Workers
from shared.cells.opening import claim_own_home
from shared.cli import output
from shared.cli.reach import FAULT
from shared.cli.readiness import why_not_ready
from shared.cli.stack.addresses import check_can_listen, connect_host
from shared.cli.stack.extras import module_command, require_extra
from shared.cli.stack.greeting import greeting
from shared.cli.stack.processes import ManagedProcesses, ProcessSpec, end_leftovers, find_leftovers
from shared.cli.stack.server_keeper import ServerKeeper
from shared.cli.stack.upstream_warm_up import WarmUp
from shared.cli.stack.workers import WorkerChange
from shared.cli.streams import OutputError
from shared.errors import PenstockError, StoreUnavailable
from shared.jobs.adapter_list import adapter_models
from shared.jobs.model_name import served_names
from shared.settings.database import EMBEDDED
from shared.settings.settings import Settings, as_environ
from shared.state_dir import lock_state_dir
from shared.store.batches.storage_location import noted_home
from shared.store.connection import WORKER, open_client
from shared.store.embedded import EmbeddedStore
from shared.store.preflight import check_fitness, require_answer
from shared.store.store import Store

if TYPE_CHECKING:
    from shared.retrieval.embedded import EmbeddedDatabase

#: Seconds between two passes of the main loop, which checks the processes and notices Ctrl-C.
POLL_INTERVAL_S = 0.1
#: Seconds between two reports about the reason of a slow start.
REPORT_INTERVAL_S = 10.0
#: Seconds that a process may take to exit after its time to drain is over, for example to write its last log lines.
EXIT_MARGIN_S = 10.0
#: Exit codes after which a restart would fail for the same reason: an invalid setting, an unfit store, or a store
#: that holds different system-wide settings. workers/exit_codes.py and web/runtime/start.py define these codes.
FATAL_EXIT_CODES = frozenset({2, 3, 7})


class Stack:
    """All processes of one `penstock up`, and the lock on its state folder."""

    def __init__(self, settings: Settings, workers: Sequence[WorkerChange], *, take_over: bool) -> None:
        """`workers` has an entry for each worker: the settings in which it differs from `settings`."""
        self._settings, self._workers, self._take_over = settings, workers, take_over
        self._state = settings.state_path
        self._processes = ManagedProcesses(self._state, report)
        self._embedded: EmbeddedStore | None = None
        self._database: EmbeddedDatabase | None = None
        self._keepers: list[ServerKeeper] = []
        own = [replace(settings, **change) for change in workers]
        passed_on = [each.upstream_model or served_names(each)[0] for each in own if each.engine == "upstream"]
        self._warm_up = WarmUp(settings.upstream_url, settings.upstream_api_key, passed_on, report)
        self._signals: list[int] = []
        host, port = settings.listen_host_port
        self._door_address = (connect_host(host), port)
        url_host = f"[{self._door_address[0]}]" if ":" in self._door_address[0] else self._door_address[0]
        self._url = f"http://{url_host}:{port}"

    def run(self) -> int:
        """Start the stack, serve until a signal arrives, stop the stack, and return the exit code.

        Raises PenstockError if the start fails.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # If SIGHUP is already ignored, as under `nohup`, keep ignoring it.
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        lock = lock_state_dir(self._state, self._url)
        try:
            if not find_leftovers(self._state):
                # Before the store starts, so that an error costs nothing. Leftovers of an earlier start still listen.
                self._check_can_listen()
            if self._settings.redis_url:
                with self._open_store() as client:
                    require_answer(client, self._settings.redis_url)
            else:
                self._embedded = EmbeddedStore.start(
                    self._state,
                    lock=lock,
                    appendfsync=self._settings.appendfsync,
                    max_bytes=self._settings.store_max_bytes,
                    key_prefix=self._settings.key_prefix,
                    should_abort=self._stopping,
                )
                self._keepers.append(ServerKeeper(self._embedded, report, self._stopping))
                self._settings = replace(self._settings, redis_url=self._embedded.url)
                report(f"store: {'taken over' if self._embedded.adopted else 'started'} in {self._state}")
            if self._settings.database_url == EMBEDDED:
                self._start_database()
            end_leftovers(self._state, self._grace_s, report, self._stop_now)
            return self._serve()
        finally:
            self._processes.stop(self._grace_s, self._stop_now)
            if self._database is not None:
                self._database.stop()
                report("database: stopped")
            if self._embedded is not None:
                self._mark_drain(began=False)
                self._embedded.stop()
                report("store: stopped")
            elif self._settings.redis_url:
                # This is an external store. If the URL is empty, no store was started, and a failed start of the
                # embedded store, or the end of this process, releases the lock.
                lock.close()

    def _start_database(self) -> None:
        """Start the embedded database; the child processes get its URL. Raises ConfigError and EmbeddedStoreError."""
        require_extra("retrieval")
        from shared.retrieval.embedded import EmbeddedDatabase

        self._database = EmbeddedDatabase.start(self._state, should_abort=self._stopping)
        self._keepers.append(ServerKeeper(self._database, report, self._stopping))
        self._settings = replace(self._settings, database_url=self._database.url)
        user = f", as the user {self._database.user}" if self._database.user else ""
        report(f"database: {'taken over' if self._database.adopted else 'started'} in {self._state}{user}")

    def _serve(self) -> int:
        """Start the door, the gate and the workers, and restart those that die until a signal arrives.

        Return the exit code. It is FAULT if a process ended in a way that a restart cannot repair.
        """
        self._check_can_listen()
        with self._open_store() as client:
            self._configure(client)
            self._settings = _with_model(self._settings)
            for spec in self._process_specs():
                self._processes.start(spec)
                report(f"{spec.name}: started")
            self._warm_up.start()
            serving, began_s, reported_s = False, time.monotonic(), time.monotonic()
            while not self._signals:
                fatal = self._processes.restart_dead(serving=serving)
                if fatal:
                    report(f"{fatal}; its output above says why. Stopping.")
                    return FAULT
                for keeper in self._keepers:
                    keeper.restart_if_dead()
                if not serving:
                    reason = self._not_ready(client)
                    serving = not reason
                    if serving:
                        self._greet(client)
                    elif time.monotonic() - reported_s > REPORT_INTERVAL_S:
                        reported_s = time.monotonic()
                        report(f"not ready after {reported_s - began_s:.0f} s: {reason}")
                time.sleep(POLL_INTERVAL_S)
        self._drain()
        return 0

    def _drain(self) -> None:
        """Wait until running jobs have ended.

        Beside a store that `up` has started, the workers stop first. Meanwhile the door and the gate still answer, and
        refuse new jobs with `draining`. Any other store may serve doors and workers elsewhere, which take new jobs.
        """
        stopping = "stopping: waiting for running jobs to end; Ctrl-C again stops them at once"
        if self._embedded is None:
            report(stopping)
            return
        self._mark_drain(began=True)
        report(stopping)
        self._processes.stop(self._grace_s, self._stop_now, workers_only=True)

    def _mark_drain(self, *, began: bool) -> None:
        """Mark the embedded store as draining, or remove the mark. If that fails, the next start removes it."""
        with suppress(StoreUnavailable, redis.RedisError), self._open_store() as client:
            if began:
                Workers(client).drain_for_stop()
            else:
                Workers(client).end_drain_for_stop()

    def _open_store(self) -> redis.Redis:
        settings = self._settings
        return open_client(settings.redis_url, name="penstock-up", prefix=settings.key_prefix, timeouts=WORKER)

    def _check_can_listen(self) -> None:
        """Raise ConfigError if another program listens on an address of the door or of the gate."""
        check_can_listen(*self._settings.listen_host_port, "--port")
        if self._settings.gate_listen:
            check_can_listen(*self._settings.gate_host_port, "--gate-port")

    def _configure(self, client: redis.Redis) -> None:
        """Check the store, report its warnings, and write the system-wide settings to it.

        If this process has just started the store, no other process uses it, and its settings are replaced. Any other
        store may already serve processes that run with the stored settings. Those are replaced only on `--take-over`.
        """
        for warning in check_fitness(client):
            report(warning)
        if self._embedded is not None:
            Workers(client).end_drain_for_stop()
        store_is_unused = self._embedded is not None and not self._embedded.adopted
        replaces = self._take_over or store_is_unused
        Store(client).configure(self._settings, take_over=replaces)
        # A store that knows of no files must not take over the files of another one unasked.
        claim_own_home(client, self._settings, take_over=replaces if noted_home(client) else self._take_over)
        if self._take_over:
            record(client, local_actor(), "settings.replace", "the system-wide settings")

    def _process_specs(self) -> list[ProcessSpec]:
        environ = os.environ | as_environ(self._settings)
        specs = [ProcessSpec("door", module_command("web"), environ, FATAL_EXIT_CODES)]
        if self._settings.gate_listen:
            specs.append(ProcessSpec("gate", module_command("web.gate"), environ, FATAL_EXIT_CODES))
        for index, change in enumerate(self._workers):
            settings = replace(self._settings, **change)
            name = f"worker {index + 1}" + (f" ({served_names(settings)[0]})" if change else "")
            command = module_command("workers", f"--index={index}", f"--workers={len(self._workers)}")
            environ = os.environ | as_environ(_worker_settings(settings, index))
            specs.append(ProcessSpec(name, command, environ, FATAL_EXIT_CODES, is_worker=True))
        return specs

    def _not_ready(self, client: redis.Redis) -> str:
        """Return the reason why the door, the gate or a model is not ready yet, or "" if all are ready."""
        host = self._settings.allowed_hosts.split(",")[0].strip()
        return (
            self._warm_up.not_done()
            or why_not_ready(self._url, host=host)
            or self._gate_not_ready()
            or self._models_not_ready(client)
        )

    def _models_not_ready(self, client: redis.Redis) -> str:
        """Return which models are not live yet, or "" if all are. The door is ready with one."""
        own = [replace(self._settings, **change) for change in self._workers]
        missing = {served_names(settings)[0] for settings, change in zip(own, self._workers, strict=True) if change}
        missing |= {name for settings in own for name in adapter_models(settings)}
        with suppress(StoreUnavailable):
            missing -= set(Store(client).snapshot(tenants=0).live_models) if missing else set()
        return f"no worker is live yet for {', '.join(sorted(missing))}" if missing else ""

    def _gate_not_ready(self) -> str:
        """Return the reason why the gate is not ready yet, or "" if it accepts connections or no gate is configured."""
        if not self._settings.gate_listen:
            return ""
        host, port = self._settings.gate_host_port
        try:
            socket.create_connection((connect_host(host), port), timeout=1.0).close()
        except OSError as error:
            return f"the gate does not answer yet ({error})"
        return ""

    def _greet(self, client: redis.Redis) -> None:
        live = dict.fromkeys(worker.model for worker in Store(client).snapshot(tenants=0).workers if worker.live)
        models = [model for model in live if model != self._settings.embedding_model]
        models.sort(key=lambda model: model != served_names(self._settings)[0])
        # The stack serves, whether anybody reads this or not.
        with suppress(OSError, OutputError):
            output.write_data(greeting(self._settings, self._url, models or ["the model"]))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    def _stopping(self) -> bool:
        return bool(self._signals)

    def _stop_now(self) -> bool:
        """Return whether a second signal has arrived, after which running jobs are ended at once."""
        return len(self._signals) > 1

    @property
    def _grace_s(self) -> float:
        return self._settings.drain_grace_ms / 1000 + EXIT_MARGIN_S


def report(text: str) -> None:
    """Write a line to stderr. If the terminal was closed, ignore the error, so that `up` can still stop in order."""
    with suppress(OSError):
        output.write_note(f"penstock: {text}")


def _worker_settings(settings: Settings, index: int) -> Settings:
    """Return the settings for worker number `index`, counted from 0.

    If PENSTOCK_WORKER_LISTEN names a port, `index` is added to it, so that each worker has its own. A worker chooses
    its devices and cores itself, from the options `--index` and `--workers` on its command line.
    """
    host, _, port = settings.worker_listen.rpartition(":")
    return replace(settings, worker_listen=f"{host}:{int(port) + index}") if port and port != "0" else settings


def _with_model(settings: Settings) -> Settings:
    """Return the settings. If the engine needs a model and none is set, write the demo model and use it.

    The file is written again at every start, because an older version of Penstock may have written the existing one.
    """
    if settings.model or settings.models or not settings.engine_kind.loads_model:
        return settings
    path = settings.state_path / "models" / "penstock-demo.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    report(f"demo model: {path}")
    command = module_command("workers.demo", str(unfinished))
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    if done.returncode or not unfinished.is_file():
        unfinished.unlink(missing_ok=True)
        raise PenstockError(f"the demo model could not be written ({' '.join(command)}); name a model with --model")
    unfinished.replace(path)
    return replace(settings, model=str(path))

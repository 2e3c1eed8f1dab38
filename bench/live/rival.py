"""Compares `penstock up` with a C++ llama.cpp server in bursts of requests: `python -m bench.live.rival`.

Both serve the demo model with the same slots, cells, batch and threads. Their clients leave after 3 s without an
answer. First, one client for each slot sends one request after another (a closed loop); 1x is the rate at which the
C++ server answers these clients. Then each system gets bursts of 2x and 5x (an open loop), between two calm times. A
system is started anew for each run. With `--upstream`, Penstock has no engine of its own, and passes the requests to
the same C++ server. bench/README.md explains the figures.
"""

import argparse
import asyncio
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.common import environment, print_environment, write_results
from bench.engine_ceiling import Ceiling
from bench.engine_peers import Peer
from bench.engine_stack import free_port
from bench.live.burst import Clients, Times, burst_figures, fates, in_time_per_s, plan_burst
from bench.live.rival_report import draw, table
from bench.live.sender import send_all, send_in_turns
from bench.live.stack import penstock_up
from bench.sim.arrivals import Crowd, plan
from bench.sim.ledger import Window
from shared.settings.settings import load as load_settings
from workers.demo import demo_model_path
from workers.engine.backend import Facts

SEED = 11
LOADS = (2.0, 5.0)
SYSTEMS = ("penstock", "rival")
#: Before the closed loop is measured, it runs for this long.
WARM_UP_S, CLOSED_LOOP_S = 5.0, 20.0


@dataclass(frozen=True)
class Setup:
    """The part that both systems have in common. `n_ctx` is the context of each slot, in tokens."""

    slots: int = 16
    n_ctx: int = 1_024
    threads: int = 1

    def environ(self) -> dict[str, str]:
        """Return Penstock's settings. All others keep their defaults."""
        return {
            "PENSTOCK_DEVICE": "cpu",
            "PENSTOCK_MODEL": str(demo_model_path()),
            "PENSTOCK_MAX_BATCH_SIZE": str(self.slots),
            "PENSTOCK_N_CTX": str(self.n_ctx),
            "PENSTOCK_KV_CELLS": str(self.slots * self.n_ctx),
            "PENSTOCK_THREADS": str(self.threads),
        }

    def facts(self) -> Facts:
        """Return what Penstock's engine makes of the settings. The C++ server gets the same."""
        ceiling = Ceiling(load_settings(self.environ(), None), demo_model_path())
        try:
            return ceiling.facts
        finally:
            ceiling.close()


class ServerTime:
    """The CPU time that the C++ server takes within a window of a run, which begins with the block."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._timers: list[threading.Timer] = []
        self._taken_s: list[float] = []

    @contextmanager
    def of(self, server: psutil.Process | None) -> Iterator[None]:
        """Look at the server's CPU time at the begin and at the end of the window."""
        if server is not None:
            at_s = (self._window.begin_ms / 1_000, self._window.end_ms / 1_000)
            self._timers = [threading.Timer(after_s, self._look, [server]) for after_s in at_s]
        for timer in self._timers:
            timer.start()
        yield
        for timer in self._timers:
            timer.join()

    def _look(self, server: psutil.Process) -> None:
        used = server.cpu_times()
        self._taken_s.append(used.user + used.system)

    def figures(self, in_time_per_s: float) -> dict[str, float]:
        """Return the part of a core that the server had, and the answers in time for each second of CPU time."""
        if not self._taken_s:
            return {}
        core = (self._taken_s[1] - self._taken_s[0]) / self._window.seconds
        return {"server_core": core, "in_time_per_server_cpu_s": in_time_per_s / core if core else 0.0}


class Rivalry:
    """Runs both systems in turn, and keeps their figures."""

    def __init__(
        self,
        setup: Setup,
        clients: Clients,
        server: Path | None,
        times: Times,
        closed_loop_s: float,
        *,
        upstream: bool = False,
    ) -> None:
        self._setup, self._clients, self._server, self._upstream = setup, clients, server, upstream
        self._times, self._closed_loop_s = times, closed_loop_s
        self._facts = setup.facts()
        self.rival_name = ""
        #: The C++ server while one runs.
        self._process: psutil.Process | None = None
        self.figures: dict[str, dict[str, Any]] = {}

    def run(self) -> None:
        """Run the closed loop of both systems, and then the bursts of both."""
        for name in SYSTEMS:
            self._keep(f"{name} closed", self._closed_loop(name))
        one_x_per_s = self.figures["rival closed"]["in_time_per_s"]
        if not one_x_per_s:
            raise SystemExit(f"{self.rival_name} answered nobody in time in the closed loop")
        for load in LOADS:
            for name in SYSTEMS:
                jobs = plan_burst(load, one_x_per_s, self._times, self._clients, SEED)
                spent = ServerTime(self._times.in_burst)
                with self._serving(name) as port, spent.of(self._process):
                    done = asyncio.run(send_all(port, jobs, self._times.seconds, self._clients.fields))
                figures = burst_figures(done, self._times)
                self._keep(f"{name} {load:g}x", figures | spent.figures(figures["in_time_per_s"]))

    def _closed_loop(self, name: str) -> dict[str, Any]:
        window = Window(WARM_UP_S * 1_000, (WARM_UP_S + self._closed_loop_s) * 1_000)
        # More requests than any of the systems can answer in that time.
        jobs = self._clients.impatient(plan(Crowd(1_000.0), WARM_UP_S + self._closed_loop_s, SEED))
        spent = ServerTime(window)
        with self._serving(name) as port, spent.of(self._process):
            running = send_in_turns(
                port, jobs, self._setup.slots, WARM_UP_S + self._closed_loop_s, self._clients.fields
            )
            done = asyncio.run(running)
        sent = [job for job in jobs if job.attempts]
        answered = [job.answer for job in sent if job.in_time]
        figures = {
            "in_time_per_s": in_time_per_s(done, window),
            "answer_tokens": sum(answered) / max(1, len(answered)),
            "fates": fates(sent),
        }
        return figures | spent.figures(in_time_per_s(done, window))

    @contextmanager
    def _serving(self, name: str) -> Iterator[int]:
        if name == "penstock" and not self._upstream:
            port = free_port()
            with penstock_up(self._setup.environ(), port):
                yield port
            return
        with tempfile.TemporaryDirectory() as folder:
            peer = Peer(demo_model_path(), self._facts, self._server, Path(folder) / "log")
            self.rival_name, self._process = peer.name, peer.processes["server"]
            try:
                if name == "rival":
                    yield peer.port
                    return
                port = free_port()
                environ = {
                    "PENSTOCK_UPSTREAM_URL": f"http://127.0.0.1:{peer.port}/v1",
                    "PENSTOCK_UPSTREAM_MODEL": "demo",
                }
                with penstock_up(environ, port, "upstream"):
                    yield port
            finally:
                self._process = None
                peer.close()

    def _keep(self, title: str, figures: dict[str, Any]) -> None:
        self.figures[title] = figures | {"load_average": os.getloadavg()[0]}
        shown = {name: value for name, value in self.figures[title].items() if not isinstance(value, list)}
        line = "  ".join(f"{key} {v:.3f}" if isinstance(v, float) else f"{key} {v}" for key, v in shown.items())
        print(f"{title:16} {line}", flush=True)


def main() -> None:
    """Print the environment, run both systems, and write figures and picture."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--server", type=Path, help="path of a llama-server; without it, xllamacpp is used")
    options.add_argument("--no-deadline", action="store_true", help="requests do not name the clients' patience")
    options.add_argument("--upstream", action="store_true", help="Penstock runs in front of the same C++ server")
    options.add_argument("--trial", action="store_true", help="run a quarter of the time, and write no results")
    chosen = options.parse_args()
    part = 0.25 if chosen.trial else 1.0
    setup, clients = Setup(), Clients(name_deadline=not chosen.no_deadline)
    facts = environment(SEED) | {"setup": vars(setup), "clients": vars(clients)}
    print_environment(facts)
    whole = Times()
    times = Times(whole.before * part, whole.burst * part, whole.after * part)
    rivalry = Rivalry(setup, clients, chosen.server, times, CLOSED_LOOP_S * part, upstream=chosen.upstream)
    rivalry.run()
    print(table(rivalry.figures, rivalry.rival_name))
    facts |= {"rival": rivalry.rival_name, "times_s": vars(times)}
    if not chosen.trial:
        name = "rival-upstream" if chosen.upstream else "rival-live"
        path = write_results(f"{name}-no-deadline" if chosen.no_deadline else name, facts, rivalry.figures)
        draw(rivalry.figures, rivalry.rival_name, times, path.with_suffix(".png"))


if __name__ == "__main__":
    main()

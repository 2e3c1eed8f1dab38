"""Compares whole jobs of two commits: jobs a second, and CPU time a job of the store, of the doors and of the workers.

Run: `python -m bench.compare 3c3745f main` (about three minutes for ten pairs). Each commit is a revision, which gets
a checkout of its own, or the folder of a checkout. Both run `penstock up --engine sim` in this environment, at the same
time; they are loaded in turns. The processes of the one that is not loaded are idle, and their time is not counted.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import psutil

from bench.common import environment, print_environment, ratio_with_interval, write_results
from bench.engine_stack import free_port
from bench.live.stack import served_process

TOKENS = 8
#: The simulated engine is so quick that it is not what bounds the jobs, and no bound refuses any.
SETTINGS = {
    "PENSTOCK_AUTH": "open",
    "PENSTOCK_SIM_PREFILL_TPS": "1000000",
    "PENSTOCK_SIM_DECODE_TPS": "1000",
    "PENSTOCK_MAX_INFLIGHT": "10000",
    "PENSTOCK_MAX_QUEUE_SIZE": "10000",
    "PENSTOCK_MAX_QUEUE_TOKENS": "100000000",
}
#: How the processes of one kind are found, by their command lines.
KINDS = {"store": r"(redis|valkey)-server", "doors": r"gunicorn|-m web$", "workers": r"-m workers"}
#: A tenant for each request, in turn.
WRK = """local sent = 0
wrk.method = "POST"
wrk.body = '%s'
wrk.headers["Content-Type"] = "application/json"
function request()
  sent = sent + 1
  wrk.headers["X-Tenant"] = "tenant" .. sent %% %d
  return wrk.format()
end
"""
_PATH = "/v1/chat/completions"


@dataclass(frozen=True)
class Load:
    """The load of one run."""

    connections: int
    tenants: int
    seconds: float


@dataclass(frozen=True)
class Side:
    """One commit under test, while its stack runs."""

    commit: str
    port: int
    process: psutil.Process

    def model(self) -> str:
        """Return the name of the model that the stack serves."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", "/v1/models")
        name = json.loads(connection.getresponse().read())["data"][0]["id"]
        connection.close()
        return str(name)

    def run(self, load: Load) -> dict[str, float]:
        """Load the stack, and return its jobs a second and the CPU time a job of each kind of process, in ms."""
        before, began_s = self._cpu_s(), time.perf_counter()
        jobs = (_load_with_wrk if shutil.which("wrk") else _load_with_threads)(self.port, self._body(), load)
        took_s, after = time.perf_counter() - began_s, self._cpu_s()
        return {"jobs_s": jobs / took_s} | {f"{kind}_ms": 1000 * (after[kind] - before[kind]) / jobs for kind in KINDS}

    def warm_up(self, load: Load) -> None:
        """Let each client have a few answers: the first jobs fill caches."""
        _load_with_threads(self.port, self._body(), load)

    def _body(self) -> str:
        messages = [{"role": "user", "content": "Hello"}]
        return json.dumps({"model": self.model(), "max_tokens": TOKENS, "messages": messages})

    def _cpu_s(self) -> dict[str, float]:
        spent = dict.fromkeys(KINDS, 0.0)
        found: set[str] = set()
        for process in self.process.children(recursive=True):
            line = " ".join(process.cmdline())
            for kind, pattern in KINDS.items():
                if re.search(pattern, line):
                    times = process.cpu_times()
                    spent[kind] += times.user + times.system
                    found.add(kind)
        if found != KINDS.keys():
            raise RuntimeError(f"of the stack's processes, only {sorted(found)} were found")
        return spent


def _load_with_wrk(port: int, body: str, load: Load) -> int:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(WRK % (body, load.tenants))
        script.flush()
        command = ["wrk", "-t1", f"-c{load.connections}", f"-d{load.seconds:g}s", "--timeout", "30s", "-s", script.name]
        done = subprocess.run(
            [*command, f"http://127.0.0.1:{port}{_PATH}"], capture_output=True, text=True, check=True
        ).stdout
    jobs = int(re.findall(r"(\d+) requests in", done)[0])
    if jobs == 0 or "Non-2xx" in done or "Socket errors" in done:
        raise RuntimeError(f"not all of {jobs} requests were answered with 200: {done}")
    return jobs


def _load_with_threads(port: int, body: str, load: Load) -> int:
    """Load the stack as wrk does. These clients take more of the machine than wrk."""
    until_s, statuses = time.perf_counter() + load.seconds, []

    def client(number: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=30)
        headers = {"Content-Type": "application/json", "X-Tenant": f"tenant{number % load.tenants}"}
        while time.perf_counter() < until_s:
            connection.request("POST", _PATH, body, headers)
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(load.connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if set(statuses) != {200}:
        raise RuntimeError(f"not all of {len(statuses)} requests were answered with 200: {sorted(set(statuses))}")
    return len(statuses)


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Yield the folder of a commit's files: the folder that `commit` names, or a checkout that lasts for the block."""
    if (Path(commit) / "shared").is_dir():
        yield Path(commit).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder).resolve() / "checkout"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(path), commit], check=True)
        try:
            yield path
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(path)], check=True)


@contextlib.contextmanager
def running(commit: str, slots: int) -> Iterator[Side]:
    """Run the stack of a commit for the length of a block, which begins when the stack is ready.

    Raises RuntimeError if a process of the stack does not run the code of the commit's checkout.
    """
    with checkout(commit) as folder, tempfile.TemporaryDirectory() as state:
        port = free_port()
        options = ["--engine", "sim", "--workers", "1", "--port", str(port), "--state-dir", f"{state}/state"]
        environ = SETTINGS | {"PENSTOCK_MAX_BATCH_SIZE": str(slots)}
        _check_origin(folder)
        with served_process(["shared.cli", "up", *options], environ, port, checkout=folder) as process:
            side = Side(_describe(folder), port, psutil.Process(process.pid))
            for child in side.process.children(recursive=True):
                if re.search(f"{KINDS['doors']}|{KINDS['workers']}", " ".join(child.cmdline())) and (
                    child.environ().get("PYTHONPATH") != str(folder) or Path(child.cwd()) != folder
                ):
                    raise RuntimeError(f"a process of {commit} does not run in {folder}: {child}")
            yield side


def _check_origin(folder: Path) -> None:
    """Raise RuntimeError unless a Python process with this folder as PYTHONPATH imports the packages from there."""
    code = "import shared, web, workers; print(*(package.__path__[0] for package in (shared, web, workers)))"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    if found != [str(folder / name) for name in ("shared", "web", "workers")]:
        raise RuntimeError(f"the packages of {folder} were imported from {found}")


def _describe(folder: Path) -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def compare(sides: tuple[Side, Side], load: Load, pairs: int) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Load both sides in turns, in alternating order, and return the figures of each pair."""
    for side in sides:
        side.warm_up(Load(load.connections, load.tenants, 2))
    rows = []
    for number in range(pairs):
        first, second = sides if number % 2 == 0 else sides[::-1]
        figures = {first.port: first.run(load), second.port: second.run(load)}
        rows.append((figures[sides[0].port], figures[sides[1].port]))
    return rows


def report(rows: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Print and return, for each figure, the medians of both sides and the ratio with its interval."""
    figures = {}
    print(f"{'':12}{'before':>10}{'after':>10}{'ratio':>8}   95 % interval")
    for name in rows[0][0]:
        pairs = [(before[name], after[name]) for before, after in rows]
        ratio, low, high = ratio_with_interval(pairs)
        medians = [statistics.median(side) for side in zip(*pairs, strict=True)]
        figures[name] = {"before": medians[0], "after": medians[1], "ratio": ratio, "low": low, "high": high}
        print(f"{name:12}{medians[0]:10.2f}{medians[1]:10.2f}{ratio:8.2f}   {low:.2f} to {high:.2f}")
    return figures


def main() -> None:
    """Compare two commits, print the figures and write the results."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("before", help="a revision, or the folder of a checkout")
    options.add_argument("after", help="likewise")
    options.add_argument("--pairs", type=int, default=10)
    options.add_argument("--seconds", type=float, default=5)
    options.add_argument("--slots", type=int, default=64)
    options.add_argument("--connections", type=int, default=64)
    options.add_argument("--tenants", type=int, default=1)
    chosen = options.parse_args()
    load = Load(chosen.connections, chosen.tenants, chosen.seconds)
    facts = environment(0)
    print_environment(facts)
    with running(chosen.before, chosen.slots) as before, running(chosen.after, chosen.slots) as after:
        facts |= {"before": before.commit, "after": after.commit, "load": vars(load) | {"slots": chosen.slots}}
        print(f"# {before.commit} (before) and {after.commit} (after), {chosen.pairs} pairs")
        rows = compare((before, after), load, chosen.pairs)
    figures = report(rows)
    write_results("compare", facts | {"load_after": os.getloadavg()}, {"figures": figures, "pairs": rows})


if __name__ == "__main__":
    main()

"""Measures what cells carry: `python -m bench.cell_capacity`, about four minutes on two cores.

One store without prefix and directory, and one, two and four cells with a store each, take turns: with the same load
and workers in all, and with the same load and one worker for each store. Cores are short on one machine, so capacity is
counted in CPU time: a store runs its scripts on one core, and cells carry as many jobs a second as the CPU time of a
job in the busiest store allows. bench/README.md explains the figures.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.cell_clients import ANSWERS, Client
from bench.common import environment, print_environment, write_results
from shared.cells.directory import CellRecord, Directory, Placement
from shared.cells.ids import DEFAULT_CELL
from shared.cells.placement import tenant_cells
from shared.cells.stored import StoredDirectory
from shared.store.connection import open_client
from shared.store.store import Store
from tests.support.ports import free_port
from tests.support.processes import Process, wait_for
from tests.support.store_servers import StoreServer

SEED = 29
#: The numbers of cells; 0 is a store without prefix and directory.
CELLS = (0, 1, 2, 4)
WORKERS = 4
#: The tenants. Each has one client, and lives in one cell: every cell has as many of them.
TENANTS = 24
#: How long the CPU time without load is measured, and how long each load runs before its turn, in seconds.
_IDLE_S, _WARM_UP_S = 3.0, 0.5
#: The simulated engine is so quick that it bounds nothing, and no bound refuses a job.
_SETTINGS = {
    "PENSTOCK_AUTH": "open",
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_WEB_WORKERS": "1",
    "PENSTOCK_SIM_PREFILL_TPS": "1000000",
    "PENSTOCK_SIM_DECODE_TPS": "1000",
    "PENSTOCK_MAX_BATCH_SIZE": "16",
    "PENSTOCK_MAX_INFLIGHT": "10000",
    "PENSTOCK_MAX_QUEUE_SIZE": "10000",
    "PENSTOCK_MAX_QUEUE_TOKENS": "100000000",
}

Figures = dict[str, float]


@dataclass(frozen=True, order=True)
class Scene:
    """A number of cells and of workers in all of them, and the jobs a second of all tenants."""

    cells: int
    workers: int
    rate: float

    def __str__(self) -> str:
        layout = {0: "no directory", 1: "1 cell"}.get(self.cells, f"{self.cells} cells")
        return f"{layout}, {self.workers} worker{'s' if self.workers > 1 else ''}, {self.rate:g}/s"


@dataclass(frozen=True)
class Layout:
    """One layout under test, while its processes run."""

    port: int
    #: The processes of each kind; those of stores by the name of their cell.
    stores: dict[str, psutil.Process]
    doors: list[psutil.Process]
    workers: list[psutil.Process]
    #: The CPU time of a second without load, by kind, as `cpu_s` has it.
    idle: dict[str, float]

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU time of each store, of the doors and of the workers since they started."""
        kinds = {f"store {name}": [process] for name, process in self.stores.items()}
        kinds |= {"doors": self.doors, "workers": self.workers}
        return {kind: sum(map(_cpu_s, processes)) for kind, processes in kinds.items()}


def _cpu_s(process: psutil.Process) -> float:
    """Return user and system time, as /proc has them."""
    times = process.cpu_times()
    return float(times.user + times.system)


@dataclass(frozen=True)
class Turn:
    """One turn: how long it took, how many jobs succeeded in each cell, and the CPU time of each kind of process."""

    took_s: float
    answered: dict[str, int]
    cpu_s: dict[str, float]


@contextmanager
def running(cells: int, count: int, folder: Path) -> Iterator[Layout]:
    """Run the stores, a number of workers and a door for the length of a block, which begins when all serve."""
    names = [DEFAULT_CELL, *(f"c{number}" for number in range(2, cells + 1))]
    plain = {name: text for name, text in os.environ.items() if not name.startswith("PENSTOCK_")}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(StoreServer(folder / name)) for name in names}
        records = {
            name: CellRecord(name, server.url, f"{{{name}}}:" if cells else "") for name, server in servers.items()
        }
        clients = {
            name: stack.enter_context(open_client(record.url, name="penstock-bench", prefix=record.prefix))
            for name, record in records.items()
        }
        if cells:
            homes = {f"tenant{number}": Placement((names[number % cells],)) for number in range(TENANTS)}
            for client in clients.values():
                StoredDirectory(client).write_if_newer(Directory(1, records, homes, changed_ms=1))

        def start(name: str, module: str, cell: str, **more: str) -> psutil.Process:
            record = records[cell]
            of_cell = {"REDIS_URL": record.url, "PENSTOCK_KEY_PREFIX": record.prefix}
            environ = plain | _SETTINGS | of_cell | {"PENSTOCK_STATE_DIR": str(folder / "state")} | more
            process = Process([sys.executable, "-P", "-m", module], environ, folder / f"{name}.log")
            stack.callback(process.end)
            return psutil.Process(process.pid)

        workers = [start(f"worker{number}", "workers", names[number % len(names)]) for number in range(count)]
        port = free_port()
        door = start("door", "web", DEFAULT_CELL, PENSTOCK_LISTEN=f"127.0.0.1:{port}")

        def live() -> int:
            return sum(worker.live for client in clients.values() for worker in Store(client).snapshot().workers)

        wait_for(lambda: live() == count and _is_ready(port), f"{cells} cells to serve", timeout_s=120)
        stores = {name: psutil.Process(server.process.pid) for name, server in servers.items()}
        yield Layout(port, stores, [door, *door.children(recursive=True)], workers, {})


def _is_ready(port: int) -> bool:
    with ExitStack() as stack:
        try:
            connection = Client.connect_plainly(port)
        except OSError:
            return False
        stack.callback(connection.close)
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == 200


def measure_idle(layout: Layout, seconds: float) -> None:
    """Note what each kind of process takes of a second without load."""
    before, began_s = layout.cpu_s(), time.perf_counter()
    time.sleep(seconds)
    took_s, after = time.perf_counter() - began_s, layout.cpu_s()
    layout.idle.update({kind: (after[kind] - before[kind]) / took_s for kind in after})


async def _load(layout: Layout, answer: str, rate: float, seconds: float, draw: random.Random) -> Counter[str]:
    """Have all tenants send jobs at one rate; return how many were answered in each cell."""
    clients = [Client(layout.port, f"tenant{number}", answer) for number in range(TENANTS)]
    interval_s, until_s = TENANTS / rate, time.perf_counter() + seconds
    await asyncio.gather(*(client.run(draw.uniform(0, interval_s), interval_s, until_s) for client in clients))
    return sum((client.answered for client in clients), Counter())


def take_turn(layout: Layout, answer: str, rate: float, seconds: float, draw: random.Random) -> Turn:
    """Load one layout, and return what was answered and what it took."""
    asyncio.run(_load(layout, answer, rate, _WARM_UP_S, draw))
    before, began_s = layout.cpu_s(), time.perf_counter()
    answered = asyncio.run(_load(layout, answer, rate, seconds, draw))
    took_s, after = time.perf_counter() - began_s, layout.cpu_s()
    if set(answered) != set(layout.stores):
        raise RuntimeError(f"jobs were answered in the cells {sorted(answered)}, and not in {sorted(layout.stores)}")
    return Turn(took_s, dict(answered), {kind: after[kind] - before[kind] for kind in after})


def figures_of(turns: Sequence[Turn], idle: dict[str, float]) -> Figures:
    """Return the jobs a second of all turns together, and the CPU time of a job of each kind of process, in ms.

    `busiest store` is that of the store with the most CPU time for each job of its cell; `beyond idle` is without what
    a process takes without load.
    """
    took_s = sum(turn.took_s for turn in turns)
    answered = sum((Counter(turn.answered) for turn in turns), Counter[str]())
    jobs = sum(answered.values())
    figures = {"jobs_s": jobs / took_s, "largest_share": max(answered.values()) / jobs}
    for name, weight in (("", 0.0), ("_beyond_idle", 1.0)):
        spent_s = {
            kind: sum(turn.cpu_s[kind] for turn in turns) - weight * idle[kind] * took_s for kind in turns[0].cpu_s
        }
        of_stores = {cell: 1000 * spent_s[f"store {cell}"] / count for cell, count in answered.items()}
        figures[f"busiest_store_ms{name}"] = max(of_stores.values())
        figures[f"stores_ms{name}"] = 1000 * sum(spent_s[f"store {cell}"] for cell in answered) / jobs
        figures |= {f"{kind}_ms{name}": 1000 * spent_s[kind] / jobs for kind in ("doors", "workers")}
    return figures


def scenes(counts: Sequence[int], rate: float) -> list[Scene]:
    """Return what takes turns: the same load and workers for all, and the same for each store."""
    most = max(counts)
    each_store = [Scene(cells, cells * WORKERS // most, rate * cells / most) for cells in counts if cells]
    return sorted({*(Scene(cells, WORKERS, rate) for cells in counts), *each_store})


def run(rate: float, rounds: int, seconds: float, counts: Sequence[int]) -> dict[str, Any]:
    """Let all scenes take turns, in another order each round. Return all turns, and the figures of each scene."""
    draw, wanted = random.Random(SEED), scenes(counts, rate)
    turns: dict[str, dict[Scene, list[Turn]]] = {answer: {scene: [] for scene in wanted} for answer in ANSWERS}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        layouts = {}
        for cells, workers in {(scene.cells, scene.workers) for scene in wanted}:
            place = Path(folder) / f"{cells}-{workers}"
            place.mkdir()
            layouts[cells, workers] = stack.enter_context(running(cells, workers, place))
        layout_of = {scene: layouts[scene.cells, scene.workers] for scene in wanted}
        for layout in layouts.values():
            measure_idle(layout, _IDLE_S)
        for number in range(rounds):
            for answer in ANSWERS:
                for scene in draw.sample(wanted, len(wanted)):
                    turn = take_turn(layout_of[scene], answer, scene.rate, seconds, draw)
                    turns[answer][scene].append(turn)
                    figures = figures_of([turn], layout_of[scene].idle)
                    print(f"# round {number + 1}, {answer}, {scene}: {_rounded(figures)}", flush=True)
        found = {
            answer: {scene: figures_of(taken, layout_of[scene].idle) for scene, taken in of_answer.items()}
            for answer, of_answer in turns.items()
        }
        idle = {str(scene): layout_of[scene].idle for scene in wanted}
    return {
        "figures": {answer: {str(scene): one for scene, one in some.items()} for answer, some in found.items()},
        "capacity": {answer: capacities(of_answer, rate) for answer, of_answer in found.items()},
        "idle": idle,
        "turns": {
            answer: {str(scene): [vars(turn) for turn in taken] for scene, taken in some.items()}
            for answer, some in turns.items()
        },
    }


def capacities(figures: dict[Scene, Figures], rate: float) -> dict[str, dict[int, float]]:
    """Return how many times as many jobs as one cell each number of cells carries, if each store has its own core.

    That is the number of cells, times the CPU time of a job in one cell, divided by that in the busiest cell; what a
    store takes without load is counted. A store takes less time for a job the more jobs it has, so this is computed
    where all layouts have the same load, and where all stores have the same.
    """
    cells = {scene.cells for scene in figures if scene.cells}
    same_load = [scene for scene in figures if scene.cells and (scene.workers, scene.rate) == (WORKERS, rate)]
    same_store = [scene for scene in figures if scene.cells and scene.rate == rate * scene.cells / max(cells)]
    found = {}
    for name, chosen in (("same load", same_load), ("same load for each store", same_store)):
        cost = {scene.cells: figures[scene]["busiest_store_ms"] for scene in chosen}
        found[name] = {number: number * cost[1] / cost[number] for number in sorted(cost) if 1 in cost}
    return found


def hashed_share(cells: int, tenants: int = 1_000) -> float:
    """Return the share of equal tenants that the fullest of some equal cells gets by hashing, times their number."""
    records = {
        f"c{number}": CellRecord(f"c{number}", f"redis://10.0.0.{number}:6379") for number in range(1, cells + 1)
    }
    directory = Directory(1, records)
    homes = Counter(tenant_cells(directory, f"tenant{number}")[0] for number in range(tenants))
    return max(homes.values()) / tenants * cells


def _rounded(figures: Figures) -> Figures:
    return {name: round(value, 2) for name, value in figures.items()}


def main() -> None:
    """Measure all layouts, print the figures and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, nargs="+", default=list(CELLS), help="0 is a store without a directory")
    parser.add_argument("--rate", type=float, default=64.0, help="jobs a second of all tenants")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="the length of each turn")
    parser.add_argument("--keep", action="store_true", help="write no results")
    chosen = parser.parse_args()
    facts = environment(SEED) | {"rate": chosen.rate, "rounds": chosen.rounds, "seconds": chosen.seconds}
    print_environment(facts)
    figures = run(chosen.rate, chosen.rounds, chosen.seconds, chosen.cells)
    for answer, of_answer in figures["figures"].items():
        print(f"\n{answer}, CPU in ms a job")
        for name, of_load in of_answer.items():
            print(f"{name:30}" + "  ".join(f"{figure} {value:.2f}" for figure, value in of_load.items()))
    print(f"\nidle, in cores: {figures['idle']}")
    print(f"capacity by that of one cell, with a core for each store: {figures['capacity']}")
    figures["hashed_share"] = {cells: hashed_share(cells) for cells in (2, 4)}
    print(f"the fullest cell's share of 1,000 equal tenants by hashing, times the cells: {figures['hashed_share']}")
    if not chosen.keep:
        write_results("cell-capacity", facts | {"load_after": os.getloadavg()}, figures)


if __name__ == "__main__":
    main()

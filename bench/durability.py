"""Measures how many acknowledged jobs a store loses when it is killed, or replaced by its replica, by its settings.

Run: `python -m bench.durability` (about four minutes). Each trial admits jobs on four connections as fast as the
store answers, kills the store's server with SIGKILL in the middle, brings a store back, and asks it for every job whose
admission was acknowledged. Where the link is *held*, the replica receives nothing for the last half second before the
kill, as if its network were slow. A power failure of the store's machine is not measured: SIGKILL leaves what
the server has handed to the kernel, and a power failure does not.
"""

import argparse
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import environment, print_environment, write_results
from bench.queue_costs import MODEL
from shared.errors import StoreUnavailable
from shared.jobs.job import NewJob, new_job_id
from shared.settings.settings import load
from shared.store import keys
from shared.store.connection import DOOR, open_client
from shared.store.replies import Admitted, HeartbeatReport
from shared.store.store import Store
from tests.chaos.proxy import StoreProxy
from tests.support.processes import wait_for
from tests.support.store_servers import StoreServer

THREADS = 4
#: How long jobs are admitted before the kill, and for how long the replica's link is held before it, in seconds.
RUN_S, HELD_S = 1.5, 0.5
BOUNDS = {
    "PENSTOCK_ADMISSION": "bounds",
    "PENSTOCK_MAX_INFLIGHT": "1000000",
    "PENSTOCK_MAX_QUEUE_SIZE": "1000000",
    "PENSTOCK_MAX_QUEUE_TOKENS": str(10**12),
}


@dataclass(frozen=True)
class Deployment:
    """How the store is set up, and what takes over after its server was killed."""

    name: str
    appendfsync: str
    replica: bool = False
    ack_replicas: int = 0
    link_is_held: bool = False


DEPLOYMENTS = (
    Deployment("everysec, restarted", "everysec"),
    Deployment("always, restarted", "always"),
    Deployment("replica takes over", "everysec", replica=True),
    Deployment("replica takes over, link held", "everysec", replica=True, link_is_held=True),
    Deployment("replica takes over, ACK_REPLICAS=1", "everysec", replica=True, ack_replicas=1),
    Deployment(
        "replica takes over, link held, ACK_REPLICAS=1", "everysec", replica=True, ack_replicas=1, link_is_held=True
    ),
)


class Admitter(threading.Thread):
    """Admits jobs on a connection of its own until the store is gone; `acked` holds the acknowledged ids."""

    def __init__(self, url: str, ack_replicas: int) -> None:
        super().__init__(daemon=True)
        self._store = Store(open_client(url, name="penstock-bench", timeouts=DOOR))
        self._ack_replicas = ack_replicas
        self.acked: list[tuple[str, float]] = []
        self.gone = threading.Event()

    def run(self) -> None:
        """Admit jobs; with a replica that does not answer, an admission fails and is not acknowledged."""
        while not self.gone.is_set():
            job = NewJob(new_job_id(), "t", MODEL, {"prompt": "hello"}, 10, 20, 600_000)
            try:
                answer = self._store.admit(job, ack_replicas=self._ack_replicas)
            except StoreUnavailable:
                continue
            if not isinstance(answer, Admitted):
                raise SystemExit(f"a job was refused: {answer}")
            self.acked.append((answer.id, time.monotonic()))


def trial(deployment: Deployment, folder: Path) -> dict[str, Any]:
    """Run one trial; return how many jobs were acknowledged and lost, and how old the oldest lost one was."""
    primary = StoreServer(folder / "primary", appendfsync=deployment.appendfsync)
    replica = StoreServer(folder / "replica", appendfsync=deployment.appendfsync)
    with primary, replica, StoreProxy(primary.port) as link:
        if deployment.replica:
            replica.follow(link.port)
            primary.wait_until_replicas_are_listed(1)
        killed_s, admitters = _admit_until_killed(deployment, primary, link)
        survivor = _bring_back(deployment, primary, replica, link)
        acked = [entry for admitter in admitters for entry in admitter.acked]
        lost = [at_s for job_id, at_s in acked if not survivor.client.exists(keys.rq_job(job_id))]
    oldest_ms = max((1_000 * (killed_s - at_s) for at_s in lost), default=0.0)
    return {"acknowledged": len(acked), "lost": len(lost), "oldest_lost_ms": round(oldest_ms, 1)}


def _admit_until_killed(deployment: Deployment, primary: StoreServer, link: StoreProxy) -> tuple[float, list[Admitter]]:
    store = Store(primary.client)
    store.configure(load(BOUNDS, None))
    store.renew(HeartbeatReport("w1", MODEL, 8, 0, 1_000_000, 1_000_000), [])
    admitters = [Admitter(primary.url, deployment.ack_replicas) for _ in range(THREADS)]
    for admitter in admitters:
        admitter.start()
    time.sleep(RUN_S)
    if deployment.link_is_held:
        link.hold(held=True)
        time.sleep(HELD_S)
    primary.process.kill()
    killed_s = time.monotonic()
    for admitter in admitters:
        admitter.gone.set()
    for admitter in admitters:
        admitter.join(10)
    return killed_s, admitters


def _bring_back(deployment: Deployment, primary: StoreServer, replica: StoreServer, link: StoreProxy) -> StoreServer:
    if not deployment.replica:
        primary.start()
        return primary
    link.cut()
    wait_for(lambda: not replica.is_in_sync, "the replica to lose its primary")
    replica.promote()
    return replica


def main() -> None:
    """Run all deployments and write the totals of their trials."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10)
    options = parser.parse_args()
    facts = environment(0)
    print_environment(facts)
    print(f"{'':46}{'trials':>8}{'acknowledged':>14}{'lost':>8}{'trials with loss':>18}{'oldest lost, ms':>17}")
    rows = {}
    for deployment in DEPLOYMENTS:
        trials = []
        for _ in range(options.trials):
            with tempfile.TemporaryDirectory() as folder:
                trials.append(trial(deployment, Path(folder)))
        row = {
            "trials": len(trials),
            "acknowledged": sum(one["acknowledged"] for one in trials),
            "lost": sum(one["lost"] for one in trials),
            "trials_with_loss": sum(1 for one in trials if one["lost"]),
            "oldest_lost_ms": max(one["oldest_lost_ms"] for one in trials),
        }
        rows[deployment.name] = row | {"each": trials}
        print(
            f"{deployment.name:46}{row['trials']:8}{row['acknowledged']:14,}{row['lost']:8,}"
            f"{row['trials_with_loss']:18}{row['oldest_lost_ms']:17,.1f}",
            flush=True,
        )
    write_results("durability", facts, rows)


if __name__ == "__main__":
    main()

"""Measures how long the retrieval step takes while its database sleeps: `python -m bench.retrieval_step`, a minute.

A door with `sim` serves jobs of 20 tenants, each with a query of its own in a collection that is searched by words. At
first none of the database's queries sleeps, then half of them, then all. The step's time is that of its own clock, the
histogram `penstock_retrieval_seconds`. The aim is its bound of 50 ms: the budget and 10 ms.
"""

import random
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

from bench.common import environment, print_environment, print_rows, write_results
from tests.support.collected import a_database, make, put
from tests.support.postgres import execute, new_database, rows, shared_server
from tests.support.scrapes import scrape
from tests.support.served import Served, sim_served
from tests.support.slow_database import let_sleep, sleep, sleepers

SEED, TENANTS = 27, 20
#: The time of a sleep in seconds, and how long a job may take in ms.
NAP_S, DEADLINE_MS = 5.0, 60_000
#: The names of the situations, the share of queries that sleep, the requests and the clients.
SITUATIONS = (
    ("no query sleeps", 0.0, 400, 4),
    ("half sleep", 0.5, 800, 4),
    ("half sleep, 16 clients", 0.5, 800, 16),
    ("all sleep", 1.0, 800, 4),
    ("none sleeps any more", 0.0, 400, 4),
)
#: The bounds of the histogram whose shares are shown, in seconds.
BOUNDS_S = (0.03, 0.04, 0.05, 0.075, 0.1)


def let_some_sleep(url: str, share: float) -> None:
    """Let this share of the queries sleep, at random."""
    execute(
        url,
        "CREATE OR REPLACE FUNCTION public.nap() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$ BEGIN "
        f"IF random() < {share} THEN PERFORM pg_sleep(seconds) FROM public.naps; END IF; RETURN true; END $$",
    )


def ask(url: str, name: str, client_number: int, requests: int, problems: list[str]) -> None:
    """Send jobs one after the other."""
    rng = random.Random(f"{SEED} {name} {client_number}")
    with httpx.Client(base_url=url, timeout=60) as client:
        for number in range(requests):
            query = f"leave {name} {client_number} {number}"
            body = {"prompt": "p", "max_tokens": 1, "deadline_ms": DEADLINE_MS}
            body |= {"retrieval": {"collection": "handbook", "k": 2, "query": query}}
            answer = client.post("/v1/jobs", headers={"X-Tenant": f"t{rng.randrange(TENANTS)}"}, json=body)
            if answer.status_code not in {200, 202, 503}:
                problems.append(answer.text)


def measured(served: Served, url: str, name: str, requests: int, clients: int) -> dict[str, float]:
    """Return the shares of the steps that ended within the bounds, in percent, and what the database was left with."""
    before, problems = scrape(f"{served.url}/metrics"), list[str]()
    threads = [
        threading.Thread(target=ask, args=(served.url, name, number, requests // clients, problems))
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise RuntimeError(f"{len(problems)} requests failed: {problems[0][:300]}")
    after = scrape(f"{served.url}/metrics")

    def added(metric: str, **labels: str) -> float:
        return after.total(metric, **labels) - before.total(metric, **labels)

    steps = added("penstock_retrieval_seconds_count")
    within = {
        f"<= {1000 * bound:.0f} ms %": 100 * added("penstock_retrieval_seconds_bucket", le=str(bound)) / steps
        for bound in BOUNDS_S
    }
    connections = rows(url, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
    # A statement is canceled by a request of its own, which the server handles when it comes to it.
    time.sleep(1)
    return {
        "steps": steps,
        **within,
        "no passages %": 100 * added("penstock_retrieval_seconds_count", source="none") / steps,
        "skipped %": 100 * added("penstock_retrieval_fallbacks_total", why="searches_stopped") / steps,
        "connections": float(str(connections[0][0])),
        "sleep later": float(sleepers(url)),
    }


def main() -> None:
    """Measure, print the figures and write them."""
    facts, figures = environment(SEED), dict[str, dict[str, float]]()
    print_environment(facts)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(new_database(stack.enter_context(shared_server(folder / "database"))))
        let_sleep(url)
        with a_database(url) as database:
            for number in range(TENANTS):
                make(database, f"t{number}", model=None, dimensions=None)
                put(database, f"t{number}", "leave.md", "Everybody has 30 days of leave.")
        served = stack.enter_context(sim_served(folder / "door", PENSTOCK_DATABASE_URL=url))
        for name, share, requests, clients in SITUATIONS:
            let_some_sleep(url, share)
            sleep(url, NAP_S if share else 0)
            # Searches that were stopped are tried again every few seconds.
            time.sleep(0 if share else 6)
            figures[name] = measured(served, url, name, requests, clients)
            print_rows({name: figures[name]})
    print(f"wrote {write_results('retrieval-step', facts, figures)}")


if __name__ == "__main__":
    main()

"""Tests how many commands an exchange runs in the store, for a full worker and many tenants that want its slots."""

from collections.abc import Callable

import pytest

from shared.store.store import Store
from tests.support.contending import a_worker, offer

#: A job of the worker: its record, what it is charged, and its part in the next choice. A tenant that wants a slot: its
#: place in the set, its group, its slots, its service and its weight.
MOST_PER_JOB, MOST_PER_TENANT = 16, 6


def commands_of(store: Store, call: Callable[[], object]) -> int:
    store.client.config_resetstat()
    call()
    stats = store.client.info("commandstats")
    return sum(
        entry["calls"] for name, entry in stats.items() if not name.startswith(("cmdstat_config", "cmdstat_info"))
    )


def commands_of_an_exchange(store: Store, slots: int, waiting: int) -> int:
    """Return the number of commands of an exchange with `slots` running jobs and `waiting` tenants."""
    worker = a_worker(store, slots, cells=1_000_000)
    for number in range(slots // 4):
        offer(store, f"loud{number}", 6)
    worker.ask()
    assert len(worker.computing) == slots
    for number in range(waiting):
        offer(store, f"quiet{number}")
    worker.run(1_000)
    worker.ask()
    worker.run(1_000)
    worker.ask()
    worker.run(1_000)
    return commands_of(store, worker.ask)


@pytest.mark.parametrize(("slots", "waiting"), [(8, 10), (32, 10), (8, 50), (32, 50)])
def test_an_exchange_looks_at_each_job_and_at_each_tenant_a_few_times(preemptive, slots, waiting):
    commands = commands_of_an_exchange(preemptive, slots, waiting)
    assert commands <= 60 + MOST_PER_JOB * slots + MOST_PER_TENANT * waiting


def test_a_claim_that_has_a_slot_for_each_queued_job_looks_at_no_job_of_the_worker(preemptive):
    commands = []
    for number in range(2):
        worker = a_worker(preemptive, 16, name=f"w{number}", cells=1_000_000)
        offer(preemptive, "loud", 12 * number)
        worker.ask()
        offer(preemptive, "quiet")
        commands.append(commands_of(preemptive, worker.ask))
        assert len(worker.computing) == 12 * number + 1
    assert commands[1] <= commands[0] + 3

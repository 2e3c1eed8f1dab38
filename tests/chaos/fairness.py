"""Compares, after the faults, the shares of two tenants with weights that wait in a cell at the same time."""

from collections.abc import Iterator

import redis

from shared.jobs.job import NewJob, new_job_id
from shared.store.replies import Admitted
from shared.store.store import Store
from tests.chaos.answers import PROMPT
from tests.chaos.system import WEIGHTED
from tests.support.builders import new_job, view_of
from tests.support.processes import wait_for

#: The jobs of each tenant, which are as many as a cell has places for, and the length of their answers.
_JOBS, _WORDS = 12, 10
_ENDS_WITHIN_S = 60.0


class SharesOfCell:
    """Two tenants' jobs in one cell, which are all offered before the first of them has ended."""

    def __init__(self, cell: str, client: redis.Redis, model: str) -> None:
        self._cell, self._store = cell, Store(client)
        self._slots = sum(worker.slots for worker in self._store.snapshot().workers if worker.live)
        #: (tenant, id) of the admitted jobs.
        self._jobs: list[tuple[str, str]] = []
        for _ in range(_JOBS):
            for tenant in WEIGHTED:
                answer = self._store.admit(_job(tenant, model))
                if isinstance(answer, Admitted):
                    self._jobs.append((tenant, answer.id))

    def flaws(self) -> Iterator[str]:
        """Wait until all jobs have ended. Yield a sentence if they did not end in the order of the tenants' shares."""
        counts = {tenant: sum(one == tenant for one, _ in self._jobs) for tenant in WEIGHTED}
        if min(counts.values()) < _JOBS // 2:
            yield f"cell {self._cell} admitted only {counts} jobs of tenants with weights, without other work"
            return
        wait_for(
            lambda: all(view_of(self._store, job_id).ended_ms for _, job_id in self._jobs),
            f"the jobs of tenants with weights to end in cell {self._cell}",
            timeout_s=_ENDS_WITHIN_S,
        )
        views = {job_id: view_of(self._store, job_id) for _, job_id in self._jobs}
        order = [tenant for tenant, job_id in sorted(self._jobs, key=lambda one: views[one[1]].ended_ms or 0)]
        light = order[: len(order) - order[::-1].index("heavy")].count("light")
        # The first jobs find free slots, and take them in turns; a tenant that was idle has a credit of two jobs.
        most = counts["heavy"] * WEIGHTED["light"] / WEIGHTED["heavy"] + self._slots / 2 + 2
        if not 1 <= light <= most:
            yield f"cell {self._cell} served tenants with weights 3 and 1 in the order {order}"


def _job(tenant: str, model: str) -> NewJob:
    return new_job(
        id=new_job_id(),
        tenant=tenant,
        model=model,
        payload={"prompt": PROMPT},
        prompt_tokens=len(PROMPT.split()),
        max_tokens=_WORDS,
        cost_mwt=1_000 * (len(PROMPT.split()) + 4 * _WORDS),
        deadline_ms=60_000,
    )

"""Reports the models that a worker could load to the store, so that their jobs are admitted."""

import os
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from shared.store.replies import HeartbeatReport, WorkerView
from workers.duties.endings import encodable
from workers.duties.heartbeat import new_worker_name

#: The facts about a model that admission and doors also need while no worker holds it.
_KEPT = frozenset(
    {
        *("aliases", "calls_tools", "counts_words", "engine", "n_ctx", "pooling", "width"),
        *("prompt_weights", "tokens_per_attachment", "tokens_per_byte"),
        *("fit_generated_weight", "generated_tps", "mu_wtps", "prefill_tps", "tpot_ms"),
    }
)


@dataclass
class Loadable:
    """One of the models, as the store sees it while it is not loaded."""

    model: str
    #: Seconds that the last load took, from the start of the process to its first heartbeat, or an estimate.
    load_s: float
    slots: int
    cells: int
    facts: dict[str, str | int | float]
    worker: str = field(default_factory=new_worker_name)
    #: Whether the store has a heartbeat of this loadable.
    is_announced: bool = False

    def learn(self, view: WorkerView) -> None:
        """Keep the figures of the worker that holds the model now."""
        self.slots, self.cells = max(1, view.slots), view.cells
        self.facts |= {name: value for name, value in view.facts.items() if name in _KEPT}

    def report(
        self,
        claims_in_s: float,
        part: float,
        failure: Mapping[str, str | int | float],
        *,
        loading: bool,
        draining: bool,
    ) -> HeartbeatReport:
        """Return a heartbeat that says when jobs will be claimed, and whether the model is `loading`.

        The rate is the `part` of the worker's time that the model may expect. `failure` says whether a load has failed.
        """
        rates: dict[str, str | int | float] = {
            name: part * float(self.facts[name]) for name in ("mu_wtps", "generated_tps") if name in self.facts
        }
        own: dict[str, str | int | float] = {
            "host": encodable(socket.gethostname()),
            "pid": os.getpid(),
            "can_pause": 0,
            "loading": int(loading),
            "claims_in_ms": max(0, round(1000 * claims_in_s)),
        }
        return HeartbeatReport(
            worker=self.worker,
            model=self.model,
            slots=self.slots,
            slots_busy=0,
            cells=self.cells,
            cells_free=self.cells,
            facts={**self.facts, **rates, **own, **failure},
            draining=draining,
        )


def held_elsewhere(workers: Sequence[WorkerView], pids: Mapping[str, int]) -> set[str]:
    """Return the models that live workers hold, except those of this host with these pids, by model."""
    host = encodable(socket.gethostname())
    return {
        view.model
        for view in workers
        if view.live
        and not view.is_loadable
        and not (view.facts.get("host") == host and view.facts.get("pid") == str(pids.get(view.model)))
    }


def loaded_next_elsewhere(workers: Sequence[WorkerView], own: Collection[str]) -> set[str]:
    """Return the models that other workers load now. `own` are the names under which this one reports its loadables."""
    return {
        view.model
        for view in workers
        if view.live and view.is_loadable and view.facts.get("loading") == "1" and view.name not in own
    }

"""Creates the pools of a worker: one for its model, and one for each of the model's adapters."""

from dataclasses import dataclass

from shared.clock import Clock
from shared.jobs.adapter_list import Adapter
from shared.jobs.cost import reported_weight
from shared.settings.settings import Settings
from shared.store.store import Store
from shared.tracing.spans import Traces
from workers.duties.heartbeat import Heartbeat, new_worker_name
from workers.duties.job_loop import JobLoop, StartEngine
from workers.duties.slot_shares import SlotShares
from workers.pools.pool_engine import EventRouter, PoolEngine
from workers.pools.served_pool import ServedPool


@dataclass(frozen=True)
class PoolMaker:
    """Makes the pools of one worker."""

    settings: Settings
    store: Store
    clock: Clock
    traces: Traces

    def one(self, worker: str, names: list[str], start_engine: StartEngine) -> list[ServedPool]:
        """Return the only pool of a worker without adapters. `names` are the model's served name and its aliases."""
        return [self._pool(worker, names, start_engine)]

    def several(
        self,
        worker: str,
        names: list[str],
        start_engine: StartEngine,
        adapters: list[Adapter],
    ) -> list[ServedPool]:
        """Return the pools of the model and of its adapters, which share the engine that is started here."""
        router = EventRouter()
        engine = start_engine(router.emit, on_ending=lambda: None)
        shares = SlotShares(lambda: engine.slots, self.clock)
        pools = [self._pool(worker, names, PoolEngine(engine, router).connect, shares)]
        for adapter in adapters:
            view = PoolEngine(engine, router, adapter)
            own = [f"{name}:{adapter.name}" for name in names]
            pools.append(self._pool(new_worker_name(), own, view.connect, shares, base=names[0]))
        return pools

    def _pool(
        self,
        worker: str,
        names: list[str],
        start_engine: StartEngine,
        shares: SlotShares | None = None,
        base: str = "",
    ) -> ServedPool:
        settings = self.settings
        loop = JobLoop(
            self.store,
            worker,
            names[0],
            start_engine,
            generated_weight=reported_weight(settings.generated_weight),
            prepare_threads=settings.prepare_threads,
            preempts=settings.preempts,
            resume_tokens=settings.resume_tokens,
            interval_s=settings.text_interval_ms / 1000,
            clock=self.clock,
            traces=self.traces,
            shares=shares,
        )
        heartbeat = Heartbeat(
            worker,
            names,
            loop.engine,
            loop.claimed_jobs,
            loop.throughput,
            lambda: loop.claimer.idle_slot_steps,
            loop.share,
            base,
            loop.engine.reported_stats if isinstance(loop.engine, PoolEngine) else None,
        )
        return ServedPool(loop, heartbeat)

"""Creates the engine that PENSTOCK_ENGINE names."""

from collections.abc import Callable, Sequence
from pathlib import Path

from shared.clock import Clock
from shared.jobs.adapter_list import Adapter
from shared.log import get_logger
from shared.settings.settings import Settings
from workers.engine.events import Event
from workers.engine.factory import make_engine
from workers.job_engine import JobEngine

log = get_logger()


def make_job_engine(
    settings: Settings,
    emit: Callable[[Event], None],
    *,
    on_ending: Callable[[], None],
    model_path: Path | None,
    clock: Clock,
    index: int,
    workers: int,
    progress: Callable[[float], None] | None,
    adapters: Sequence[Adapter] = (),
) -> JobEngine:
    """Return an engine that is ready to run: see `make_engine`. Raises ModelError."""
    if settings.engine == "upstream":
        # Imported only if needed, because importing aiohttp takes a third of a second.
        from workers.upstream.factory import make_upstream_engine  # noqa: PLC0415 - see above

        log.info("worker.upstream", url=settings.upstream_url, has_key=bool(settings.upstream_api_key))
        return make_upstream_engine(settings, emit, on_ending=on_ending, clock=clock)
    return make_engine(
        settings,
        emit,
        on_ending=on_ending,
        model_path=model_path,
        clock=clock,
        index=index,
        workers=workers,
        progress=progress,
        adapters=adapters,
    )

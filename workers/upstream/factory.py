"""Creates an upstream engine from the settings."""

from collections.abc import Callable

from shared.clock import Clock, RealClock
from shared.jobs.model_name import served_names
from shared.settings.setting import AUTO
from shared.settings.settings import Settings
from workers.engine.backend import UNLIMITED_CTX, Facts
from workers.engine.events import Event
from workers.upstream.client import UpstreamClient
from workers.upstream.concurrency import Concurrency
from workers.upstream.endings import PatienceLimits
from workers.upstream.engine import UpstreamEngine

#: The most jobs at once if PENSTOCK_MAX_BATCH_SIZE is auto.
_SLOTS = 64


def make_upstream_engine(
    settings: Settings, emit: Callable[[Event], None], *, on_ending: Callable[[], None], clock: Clock | None = None
) -> UpstreamEngine:
    """Return an engine that is ready to run; nothing is sent to the upstream before it runs.

    `on_ending` is called when the upstream takes requests again after it did not, or more at once than before.
    """
    clock = clock or RealClock()
    fixed = None if settings.upstream_concurrency == AUTO else settings.upstream_concurrency
    slots = (fixed or _SLOTS) if settings.max_batch_size == AUTO else settings.max_batch_size
    # The upstream decides which jobs are too long.
    longest = UNLIMITED_CTX if settings.n_ctx == AUTO else settings.n_ctx
    facts = Facts(
        engine="upstream",
        device="upstream",
        model=settings.upstream_model or served_names(settings)[0],
        n_ctx=longest,
        cells=slots * longest,
        slots=slots,
        forwards=True,
        forwards_several=True,
    )
    limits = PatienceLimits(
        settings.upstream_first_token_ms / 1000, settings.upstream_gap_ms / 1000, settings.max_attempts
    )
    client = UpstreamClient(settings.upstream_url, settings.upstream_api_key)
    concurrency = Concurrency(slots, clock.monotonic(), fixed=fixed)
    return UpstreamEngine(client, facts, limits, emit, clock, on_room=on_ending, concurrency=concurrency)

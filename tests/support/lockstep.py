"""A backend on a manual clock, whose calls take as long as their rows need and whose cache is split by slot."""

from collections.abc import Callable

from shared.clock import ManualClock
from workers.engine.backend import BatchRow
from workers.engine.events import Event
from workers.engine.loop import Engine
from workers.engine.sim import SimBackend
from workers.engine.stats import EngineSettings
from workers.engine.step_time import StepTimeModel

#: The time in ms that a call takes, each of its decode rows, and each of its prompt tokens.
CALL_MS, ROW_MS, TOKEN_MS = 5.0, 0.5, 1.0


class Lockstep(SimBackend):
    """The sim backend, but it computes all rows of a call at once. Prompt tokens are words."""

    lockstep = compact = True

    def __init__(self, *, slots: int, n_ctx: int, clock: ManualClock) -> None:
        super().__init__(slots=slots, cells=slots * n_ctx, n_ctx=n_ctx, clock=clock)
        self.held_clock = clock
        #: The rows of each call so far.
        self.calls: list[list[BatchRow]] = []
        #: Called in the middle of each call, with its rows.
        self.during_call: Callable[[list[BatchRow]], None] = lambda _rows: None

    def decode(self, rows: list[BatchRow], meanwhile: Callable[[], None] | None = None) -> list[BatchRow]:
        """Compute all rows, and advance the clock by the time that they take."""
        self.calls.append(rows)
        self.during_call(rows)
        self.held_clock.advance(sum([CALL_MS, *map(_row_ms, rows)]) / 1000)
        return rows


def _row_ms(row: BatchRow) -> float:
    return ROW_MS if row.token >= 0 else TOKEN_MS * row.n


def lockstep_engine(backend: Lockstep, emit: Callable[[Event], None], **settings: float) -> Engine:
    """Return an engine over `backend` that knows the step times from the start."""
    step_time = StepTimeModel(base_ms=CALL_MS, row_ms=ROW_MS, token_ms=TOKEN_MS)
    return Engine(backend, EngineSettings(**settings), emit, backend.held_clock, step_time)

"""A backend whose steps last as long as they are large, over a split cache, on a clock that only it moves."""

from collections.abc import Callable

from shared.clock import HeldClock
from workers.engine.backend import BatchRow
from workers.engine.events import Event
from workers.engine.loop import Engine
from workers.engine.sim import SimBackend
from workers.engine.stats import EngineSettings
from workers.engine.step_time import StepTimeModel

#: ms of a call, of each decoding row, of each prompt token.
CALL_MS, ROW_MS, TOKEN_MS = 5.0, 0.5, 1.0


class Lockstep(SimBackend):
    """The sim's words, all rows of a call at once. Prompt tokens are words."""

    lockstep = compact = True

    def __init__(self, *, slots: int, n_ctx: int, clock: HeldClock) -> None:
        super().__init__(slots=slots, cells=slots * n_ctx, n_ctx=n_ctx, clock=clock)
        self.held_clock = clock
        #: The calls so far, each with its rows.
        self.calls: list[list[BatchRow]] = []
        #: Called in the middle of each call, with its rows.
        self.meanwhile: Callable[[list[BatchRow]], None] = lambda _rows: None

    def decode(self, rows: list[BatchRow]) -> list[BatchRow]:
        """All of them, in the time that so many take."""
        self.calls.append(rows)
        self.meanwhile(rows)
        self.held_clock.advance(sum([CALL_MS, *map(_took_ms, rows)]) / 1000)
        return rows


def _took_ms(row: BatchRow) -> float:
    return ROW_MS if row.token >= 0 else TOKEN_MS * row.n


def lockstep_engine(backend: Lockstep, emit: Callable[[Event], None], **settings: float) -> Engine:
    """An engine over it that knows its times from the start."""
    fit = StepTimeModel(base_ms=CALL_MS, row_ms=ROW_MS, token_ms=TOKEN_MS)
    return Engine(backend, EngineSettings(**settings), emit, backend.held_clock, fit)

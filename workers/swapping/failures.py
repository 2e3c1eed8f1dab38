"""Keeps which models could not be loaded, and lets the jobs that wait for them end."""

import secrets
import signal
from dataclasses import dataclass

from shared.jobs.job import Ending
from shared.jobs.outcomes import EndCode, Outcome, Stage
from shared.store.replies import PoolView
from shared.store.store import Store
from workers.exit_codes import ExitCode
from workers.swapping.loadable import Loadable

#: After a model's process has failed, the model is not loaded for this long; each further failure doubles it. The store
#: keeps the end of the pause, so that all workers obey it.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 300.0
#: The first failure may be due to a moment without memory: the jobs that wait end after this many in a row.
_GIVES_UP = 2
#: The most jobs that are ended at once, and KV cells enough for any.
_AT_ONCE, _ALL_CELLS = 64, 1 << 40


@dataclass(frozen=True)
class Failure:
    """A failed load: how many in a row it was, when the model is tried again by the monotonic clock, and why."""

    count: int
    until_s: float
    pause_s: float
    why: str


class Failures:
    """The failed loads of one worker, and those that the store has of others."""

    def __init__(self) -> None:
        self._own: dict[str, Failure] = {}
        #: The models whose files were replaced, until a heartbeat has cleared what the store has of them.
        self._outdated: set[str] = set()
        self._pools: dict[str, PoolView] = {}

    def see(self, pools: dict[str, PoolView]) -> None:
        """Note the pools as the store has them."""
        self._pools = pools

    def note(self, model: str, exit_code: int, now_s: float) -> Failure:
        """Note that the model's process has ended by itself, with a negative signal number or an exit code."""
        own, pool = self._own.get(model), self._pools.get(model)
        known = 0 if pool is None or model in self._outdated else pool.load_failures
        count = 1 + max(0 if own is None else own.count, known)
        pause_s = min(_FIRST_PAUSE_S * 2 ** min(count - 1, 16), _LONGEST_PAUSE_S)
        self._own[model] = Failure(count, now_s + pause_s, pause_s, _why(exit_code))
        self._outdated.discard(model)
        return self._own[model]

    def forget(self, model: str, *, is_replaced: bool = False) -> None:
        """Forget the failures of a model that was loaded, or whose file was replaced."""
        self._own.pop(model, None)
        if is_replaced:
            self._outdated.add(model)
        else:
            self._outdated.discard(model)

    def is_paused(self, model: str, now_s: float) -> bool:
        """Return whether the model must not be loaded now, by a failure of this worker or of another."""
        own, pool = self._own.get(model), self._pools.get(model)
        if own is not None and own.until_s > now_s:
            return True
        return pool is not None and pool.load_retry_in_ms > 0 and model not in self._outdated

    def retry_in_s(self, model: str, now_s: float) -> float:
        """Return in how many seconds the model may be loaded again."""
        own, pool = self._own.get(model), self._pools.get(model)
        theirs_s = 0.0 if pool is None or model in self._outdated else pool.load_retry_in_ms / 1000
        return max(0.0, theirs_s, 0.0 if own is None else own.until_s - now_s)

    def facts(self, model: str, now_s: float) -> dict[str, str | int | float]:
        """Return what the model's heartbeat says about failures of this worker."""
        own = self._own.get(model)
        if own is None:
            return {"load_failures": 0} if model in self._outdated else {}
        retry_in_ms = max(0, round(1000 * (own.until_s - now_s)))
        return {"load_failures": own.count, "load_retry_in_ms": retry_in_ms, "load_error": own.why}

    def reported(self, model: str) -> None:
        """Note that the store has the model's facts: from there on it has only failures of the present file."""
        self._outdated.discard(model)

    def given_up(self, model: str) -> Failure | None:
        """Return the failure of this worker after which the jobs that wait for the model end, or None."""
        own = self._own.get(model)
        return own if own is not None and own.count >= _GIVES_UP else None


def end_waiting(store: Store, loadable: Loadable, failure: Failure) -> int:
    """End jobs that wait for a model that cannot be loaded, and return their number. Raises StoreUnavailable."""
    claim_id = secrets.token_hex(8)
    claimed = store.claim(loadable.worker, claim_id, loadable.model, room=_AT_ONCE, cells_free=_ALL_CELLS)
    message = f"model {loadable.model!r} could not be loaded {failure.count} times in a row: {failure.why}"
    endings = [
        Ending(job.id, claim_id, Outcome.FAILED, code=EndCode.LOAD_FAILED, stage=Stage.QUEUE, message=message)
        for job in claimed
    ]
    store.settle_many(endings, loadable.worker)
    return len(endings)


def _why(exit_code: int) -> str:
    if exit_code < 0:
        known = {number.value: number.name for number in signal.Signals}
        name = known.get(-exit_code, str(-exit_code))
        return f"its process was ended by {name}" + (", perhaps for lack of memory" if name == "SIGKILL" else "")
    if exit_code == ExitCode.MODEL:
        return "its file or its device could not be used"
    return f"its process ended with exit code {exit_code}"

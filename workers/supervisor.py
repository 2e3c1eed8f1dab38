"""Starts a worker's duties in order, waits for a signal or a fault, drains, and stops the duties in reverse order.

Signal handlers only put a notice into a queue; the main thread reads the queue and makes every decision. During a
drain the worker claims no more jobs and lets running jobs finish. It releases those that do not finish in time, and
a release does not count as an attempt. In the worst case the process is killed before it has released them: the
leases expire, and other workers claim the jobs.
"""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType

from shared.audit.sweeper import Sweeper
from shared.clock import Clock
from shared.errors import SchemaConflict, SettingsConflict, StoreUnavailable
from shared.history.historian import Historian
from shared.log import get_logger
from shared.settings.settings import Settings
from shared.store.reaper import Reaper
from shared.store.store import Store
from workers.duties.audit import Audit
from workers.duties.endings import encodable
from workers.duties.load_log import LoadLog
from workers.duties.reconciler import Reconciler
from workers.duties.watchdog import Watchdog
from workers.duty import Duty, DutyWork
from workers.exit_codes import ExitCode
from workers.pools.served_pool import ServedPool
from workers.rqworker import RqWorker

log = get_logger()

#: Time at the end of the grace period that is reserved for releasing jobs, and the largest share of the grace period
#: that this time may take up.
_RELEASE_S, _RELEASE_SHARE = 1.0, 0.1
#: Interval at which the main thread checks for signals that did not wake it.
_POLL_S = 0.25
#: Interval at which a drain checks whether it is finished.
_DRAIN_POLL_S = 0.02
#: How long a drain with nothing else to do waits for the answer to a claim. A store that is up answers sooner. If the
#: store is unavailable, the leases of any jobs that this claim obtained expire, and other workers claim the jobs.
_CLAIM_ANSWER_S = 2.0
#: How long the end of a drain waits until the tokens of the engine's last step are reported to the store.
_REPORT_S = 0.5
#: How long the duties may take to end their passes, and the engine its step. No call to the store takes this long.
_STOP_S = 6.0
#: One stop request can reach this process twice: from the terminal (Ctrl-C) or a service manager, which signal every
#: process of the group, and from the parent (`penstock up`). Signals less than this time apart are one request.
_SAME_REQUEST_S = 1.0
#: How much of the reason for its end a worker leaves in the store, in characters.
_MAX_WHY = 200


@dataclass(frozen=True)
class _Notice:
    """Why the main thread wakes: a signal arrived (its name is in `signal`), or a thread requests an exit code."""

    signal: str = ""
    code: ExitCode = ExitCode.DRAINED
    why: str = ""


def _do_nothing() -> None:
    """Leave the store as it is."""


class Supervisor:
    """Runs one worker, from its first heartbeat to its last. It serves one pool, or several that share its engine."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        pools: Sequence[ServedPool],
        *,
        clock: Clock,
        more_work: Sequence[DutyWork] = (),
    ) -> None:
        """Create the supervisor of a worker, whose first pool is that of its model.

        `more_work` is for duties that only observe, beside those of every worker.
        """
        self._settings, self._store, self._clock = settings, store, clock
        self._pools = list(pools)
        self._engine = pools[0].job_loop.engine
        self._worker = pools[0].worker
        self._notices: SimpleQueue[_Notice] = SimpleQueue()
        self._exit = ExitCode.DRAINED
        #: Why the worker ends, unless it was asked to.
        self._fault = ""
        #: Whether a call to the store failed while the worker was stopping. If so, no further call is made.
        self._store_away = False
        self._engine_stop = threading.Event()
        self._engine_thread = threading.Thread(target=self._run_engine, name="engine", daemon=True)
        self._rq = RqWorker(self._worker, store.client, self._serve)
        own = [self._duties_of(pool) for pool in self._pools]
        #: Start first, because no job is claimed before the first heartbeat is answered. Stop last, to renew leases.
        self._leases = [leases for leases, _, _ in own]
        #: All duties, in the order in which they are started. Those that serve all workers, or only observe, do not end
        #: the process if they fail.
        self._duties = [
            *self._leases,
            *(Duty(work(store), on_failure=None) for work in (Reaper, Reconciler, Sweeper)),
            Duty(Historian(store, settings.history_bytes), on_failure=None),
            *(duty for _, job_loop, doorbell in own for duty in (job_loop, doorbell)),
            # These duties start last, because they observe the others.
            Duty(self._make_watchdog(), self._duty_failed),
            Duty(LoadLog(self._engine, [pool.job_loop.claimed_jobs for pool in pools], clock), on_failure=None),
            Duty(Audit(store, pools[0].job_loop.claimed_jobs, clock), on_failure=None),
            *(Duty(work, on_failure=None) for work in more_work),
        ]

    def _duties_of(self, pool: ServedPool) -> tuple[Duty, Duty, Duty]:
        is_first = pool is self._pools[0]
        return pool.duties(
            self._store,
            self._settings.lease_ms,
            on_failure=self._duty_failed,
            on_drain=self._set_paused,
            # RQ has one record of this process.
            on_unregistered=self._register if is_first else _do_nothing,
        )

    def _make_watchdog(self) -> Watchdog:
        stats = self._engine.stats
        return Watchdog(
            stall_ms=self._settings.stall_ms, clock=self._clock, busy=self._busy, progress=lambda: stats.progress
        )

    def run(self) -> ExitCode:
        """Serve until a signal arrives or a fault occurs; drain after a signal. Return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        self._rq.work()
        return self._exit

    def _serve(self) -> bool:
        """Start everything, wait for a notice, and stop. RQ's record of this worker stays until this returns."""
        self._engine_thread.start()
        for duty in self._duties:
            duty.start()
        # Wait with a timeout, because Python runs signal handlers only on this thread, and a signal that the kernel
        # delivers to another thread does not interrupt the wait.
        while (notice := self._next_notice(_POLL_S)) is None:
            pass
        if notice.signal:
            self._drain(notice.signal)
        else:
            self._end_by(notice)
            if notice.code is ExitCode.CONFIG_LOST:
                self._close()
                self._release_held()
        self._stop()
        self._check_late_faults()
        return True

    def _end_by(self, notice: _Notice) -> None:
        self._exit, self._fault = notice.code, encodable(notice.why)[:_MAX_WHY]
        log.error("worker.ending", why=notice.why, exit=int(notice.code))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # SimpleQueue.put is reentrant, so a signal handler may interrupt it and call it again; a lock would deadlock.
        self._notices.put(_Notice(signal=signal.Signals(number).name))

    def _duty_failed(self, name: str) -> None:
        self._notices.put(_Notice(code=ExitCode.DUTY, why=f"the duty {name} failed too often"))

    def _run_engine(self) -> None:
        try:
            self._engine.run(self._engine_stop)
        except Exception as fault:
            log.exception("engine.fault")
            self._notices.put(_Notice(code=ExitCode.ENGINE, why=f"the engine's loop ended: {fault}"))

    def _set_paused(self, pool: ServedPool, paused: bool) -> None:
        """Pause or resume claiming, as the answer to a heartbeat requests. A pause does not end the process."""
        claimer = pool.job_loop.claimer
        if paused != claimer.paused:
            log.info("worker.paused" if paused else "worker.claiming", model=pool.model)
            claimer.paused = paused
            pool.heartbeat.draining = paused or claimer.closed
            if paused:
                self._engine.recall()
            pool.job_loop.look_for_work()

    def _close(self) -> None:
        for pool in self._pools:
            pool.job_loop.claimer.closed = True

    @property
    def _held(self) -> int:
        return sum(len(pool.job_loop.claimed_jobs) for pool in self._pools)

    def _register(self) -> None:
        """Register this worker with RQ. If the store now has other system-wide settings, request CONFIG_LOST instead.

        Called if RQ has no record of this worker: it is new, it was away for long, or the store came back empty.
        """
        try:
            self._store.configure(self._settings)
            self._rq.register_birth()
            # If the store was emptied between the two calls, it knows the worker but not the settings.
            self._store.configure(self._settings)
        except (SettingsConflict, SchemaConflict) as conflict:
            self._notices.put(_Notice(code=ExitCode.CONFIG_LOST, why=str(conflict)))

    def _drain(self, signal_name: str) -> None:
        grace_s = self._settings.drain_grace_ms / 1000
        log.info("worker.draining", signal=signal_name, held=self._held, grace_s=grace_s)
        self._close()
        for pool, leases in zip(self._pools, self._leases, strict=True):
            # Another worker continues the jobs that do not end in time, so their text must be in the store by then.
            pool.job_loop.delivery.send_all_text()
            pool.heartbeat.draining = True
            leases.wake()
            pool.job_loop.wake.set()
        began_s = self._clock.monotonic()
        until_s = began_s + grace_s - min(_RELEASE_S, grace_s * _RELEASE_SHARE)
        while not self._drained(began_s) and self._clock.monotonic() < until_s:
            # Return jobs that have no slot, because another worker can start or continue them at once. Recall in every
            # iteration, because a claim that was already sent may still bring in jobs.
            self._engine.recall()
            notice = self._next_notice(_DRAIN_POLL_S)
            if notice is None:
                continue
            if notice.code is not ExitCode.DRAINED:
                self._end_by(notice)
                return
            if self._clock.monotonic() - began_s > _SAME_REQUEST_S:
                log.warning("worker.forced", signal=notice.signal, held=self._held, exit=int(ExitCode.FORCED))
                os._exit(ExitCode.FORCED)
        if not self._drained(began_s):
            self._release_held()
        self._store_away |= self._claim_pending and self._clock.monotonic() - began_s >= _CLAIM_ANSWER_S

    @property
    def _claim_pending(self) -> bool:
        return any(pool.job_loop.claimer.claim_pending for pool in self._pools)

    def _drained(self, began_s: float) -> bool:
        if any(pool.holds_jobs for pool in self._pools):
            return False
        return not self._claim_pending or self._clock.monotonic() - began_s >= _CLAIM_ANSWER_S

    def _next_notice(self, wait_s: float) -> _Notice | None:
        try:
            return self._notices.get(timeout=wait_s)
        except Empty:
            return None

    def _release_held(self) -> None:
        """Release the jobs that did not end in time; the engine drops them first and computes nothing more for them."""
        by_pool = [(pool, pool.job_loop.claimed_jobs.held()) for pool in self._pools]
        for claim in (claim for _, held in by_pool for claim in held):
            self._engine.cancel(claim, drop=True)
        for pool, held in by_pool:
            try:
                released = self._store.release(pool.worker, held) if held else 0
            except StoreUnavailable as error:
                self._store_away = True
                log.warning("worker.not_given_back", held=len(held), error=str(error))
                return
            for claim in held:
                pool.job_loop.claimed_jobs.remove(claim)
            log.info("worker.gave_back", held=len(held), released=released)
        self._report_computed_tokens()

    def _report_computed_tokens(self) -> None:
        """Report the tokens that the engine computed for released jobs, if its step ends within `_REPORT_S`."""
        until_s = self._clock.monotonic() + _REPORT_S
        while self._clock.monotonic() < until_s and (self._busy() or self._has_unsent):
            for pool in self._pools:
                pool.job_loop.wake.set()
            # This wait only sleeps, because `_stop` sets the event later. `_next_notice` would consume a notice.
            self._engine_stop.wait(_DRAIN_POLL_S)

    @property
    def _has_unsent(self) -> bool:
        return any(pool.job_loop.delivery.has_unsent for pool in self._pools)

    def _check_late_faults(self) -> None:
        """Set the exit code from a fault that occurred after the main thread had stopped waiting for notices."""
        while (notice := self._next_notice(0)) is not None:
            if notice.code is not ExitCode.DRAINED and self._exit is ExitCode.DRAINED:
                self._end_by(notice)

    def _busy(self) -> bool:
        return self._engine.free_capacity().slots < self._engine.slots

    def _stop(self) -> None:
        """Stop all duties (the leases last), then the engine. The duties share one timeout, in case the store hangs."""
        # A doorbell's thread may hear of a job before it ends, and must not claim it then.
        self._close()
        others = [duty for duty in reversed(self._duties) if duty not in self._leases]
        for duty in others:
            duty.request_stop()
        # A doorbell's thread is blocked in a call to the store; ringing the worker's own doorbell ends that call.
        for pool in self._pools:
            self._call_store(partial(self._store.ring, pool.worker))
        until_s = self._clock.monotonic() + (0.0 if self._store_away else _STOP_S)
        for duty in (*others, *self._leases):
            if not (duty.stop(max(0.0, until_s - self._clock.monotonic())) or self._store_away):
                log.warning("duty.hangs", duty=duty.work.name)
        self._engine_stop.set()
        self._engine.wake()
        self._engine_thread.join(_STOP_S)
        # Admission must stop counting this worker's slots. If the store cannot be reached now, the slots are counted
        # until five seconds after the last heartbeat.
        for pool in self._pools:
            self._call_store(partial(self._store.farewell, pool.worker, pool.model, fault=self._fault))
        self._rq.skip_deregistration = self._store_away
        log.info("worker.stopped", exit=int(self._exit))

    def _call_store(self, call: Callable[[], object]) -> None:
        """Make a last call to the store, unless an earlier one failed because the store is unavailable."""
        try:
            if not self._store_away:
                call()
        except StoreUnavailable as error:
            self._store_away = True
            log.warning("store.untold", error=str(error))

"""Starts a worker's duties in order, waits for a signal or a fault, drains, and stops the duties in reverse order.

Signal handlers only put a notice into a queue; the main thread reads the queue and makes every decision. During a
drain the worker claims no more jobs and lets running jobs finish. It releases those that do not finish in time, and
a release does not count as an attempt. In the worst case the process is killed before it has released them: the
leases expire, and other workers claim the jobs.
"""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
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
from workers.duties.doorbell import Doorbell
from workers.duties.endings import encodable
from workers.duties.heartbeat import Heartbeat
from workers.duties.job_loop import JobLoop
from workers.duties.leases import Leases
from workers.duties.load_log import LoadLog
from workers.duties.reconciler import Reconciler
from workers.duties.watchdog import Watchdog
from workers.duty import Duty
from workers.exit_codes import ExitCode
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


class Supervisor:
    """Runs one worker, from its first heartbeat to its last."""

    def __init__(
        self, settings: Settings, store: Store, job_loop: JobLoop, heartbeat: Heartbeat, *, clock: Clock
    ) -> None:
        self._settings, self._store, self._clock = settings, store, clock
        self._job_loop, self._heartbeat = job_loop, heartbeat
        self._engine, self._claimer, self._delivery = job_loop.engine, job_loop.claimer, job_loop.delivery
        self._claimed_jobs = job_loop.claimed_jobs
        self._worker = heartbeat.worker
        self._notices: SimpleQueue[_Notice] = SimpleQueue()
        self._exit = ExitCode.DRAINED
        #: Why the worker ends, unless it was asked to.
        self._fault = ""
        #: Whether a call to the store failed while the worker was stopping. If so, no further call is made.
        self._store_away = False
        self._engine_stop = threading.Event()
        self._engine_thread = threading.Thread(target=self._run_engine, name="engine", daemon=True)
        self._rq = RqWorker(self._worker, store.client, self._serve)
        #: Starts first, because no job is claimed before the first heartbeat is answered. Stops last, to renew leases.
        self._leases = Duty(self._make_leases(), self._duty_failed)
        #: All duties, in the order in which they are started. Those that serve all workers, or only observe, do not end
        #: the process if they fail.
        self._duties = [
            self._leases,
            *(Duty(work(store), on_failure=None) for work in (Reaper, Reconciler, Sweeper)),
            Duty(Historian(store, settings.history_bytes), on_failure=None),
            # The job loop starts before the doorbell, which wakes the job loop or runs its passes.
            Duty(job_loop, self._duty_failed, job_loop.wake),
            Duty(self._make_doorbell(), self._duty_failed),
            # These duties start last, because they observe the others.
            Duty(self._make_watchdog(), self._duty_failed),
            Duty(LoadLog(self._engine, self._claimed_jobs, clock), on_failure=None),
            Duty(Audit(store, self._claimed_jobs, clock), on_failure=None),
        ]

    def _make_leases(self) -> Leases:
        return Leases(
            self._store,
            claimed_jobs=self._claimed_jobs,
            engine=self._engine,
            lease_ms=self._settings.lease_ms,
            make_report=self._heartbeat.report,
            on_drain=self._set_paused,
            on_unregistered=self._register,
        )

    def _make_doorbell(self) -> Doorbell:
        return Doorbell(
            self._store,
            self._worker,
            self._heartbeat.model,
            claimed_jobs=self._claimed_jobs,
            engine=self._engine,
            pool=self._job_loop.pool,
            has_free_slot=lambda: self._claimer.has_free_slot,
            on_work=self._job_loop.claim_now,
            on_contest=self._job_loop.contest,
            on_follower=self._delivery.note_follower,
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
                self._claimer.closed = True
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

    def _set_paused(self, paused: bool) -> None:
        """Pause or resume claiming, as the answer to a heartbeat requests. A pause does not end the process."""
        if paused != self._claimer.paused:
            log.info("worker.paused" if paused else "worker.claiming")
            self._claimer.paused = paused
            self._heartbeat.draining = paused or self._claimer.closed
            if paused:
                self._engine.recall()
            self._job_loop.look_for_work()

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
        log.info("worker.draining", signal=signal_name, held=len(self._claimed_jobs), grace_s=grace_s)
        self._claimer.closed = True
        # Another worker continues the jobs that do not end in time, so their text must be in the store by then.
        self._delivery.send_all_text()
        self._heartbeat.draining = True
        self._leases.wake()
        self._job_loop.wake.set()
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
                log.warning(
                    "worker.forced", signal=notice.signal, held=len(self._claimed_jobs), exit=int(ExitCode.FORCED)
                )
                os._exit(ExitCode.FORCED)
        if not self._drained(began_s):
            self._release_held()
        self._store_away |= self._claimer.claim_pending and self._clock.monotonic() - began_s >= _CLAIM_ANSWER_S

    def _drained(self, began_s: float) -> bool:
        if len(self._claimed_jobs) or self._delivery.has_unsent:
            return False
        return not self._claimer.claim_pending or self._clock.monotonic() - began_s >= _CLAIM_ANSWER_S

    def _next_notice(self, wait_s: float) -> _Notice | None:
        try:
            return self._notices.get(timeout=wait_s)
        except Empty:
            return None

    def _release_held(self) -> None:
        """Release the jobs that did not end in time; the engine drops them first and computes nothing more for them."""
        held = self._claimed_jobs.held()
        for claim in held:
            self._engine.cancel(claim, drop=True)
        try:
            released = self._store.release(self._worker, held) if held else 0
        except StoreUnavailable as error:
            self._store_away = True
            log.warning("worker.not_given_back", held=len(held), error=str(error))
            return
        for claim in held:
            self._claimed_jobs.remove(claim)
        log.info("worker.gave_back", held=len(held), released=released)
        self._report_computed_tokens()

    def _report_computed_tokens(self) -> None:
        """Report the tokens that the engine computed for released jobs, if its step ends within `_REPORT_S`."""
        until_s = self._clock.monotonic() + _REPORT_S
        while self._clock.monotonic() < until_s and (self._busy() or self._delivery.has_unsent):
            self._job_loop.wake.set()
            # This wait only sleeps, because `_stop` sets the event later. `_next_notice` would consume a notice.
            self._engine_stop.wait(_DRAIN_POLL_S)

    def _check_late_faults(self) -> None:
        """Set the exit code from a fault that occurred after the main thread had stopped waiting for notices."""
        while (notice := self._next_notice(0)) is not None:
            if notice.code is not ExitCode.DRAINED and self._exit is ExitCode.DRAINED:
                self._end_by(notice)

    def _busy(self) -> bool:
        return self._engine.free_capacity().slots < self._engine.slots

    def _stop(self) -> None:
        """Stop all duties (the leases last), then the engine. The duties share one timeout, in case the store hangs."""
        # The doorbell's thread may hear of a job before it ends, and must not claim it then.
        self._claimer.closed = True
        others = [duty for duty in reversed(self._duties) if duty is not self._leases]
        for duty in others:
            duty.request_stop()
        # The doorbell's thread is blocked in a call to the store; ringing the worker's own doorbell ends that call.
        self._call_store(lambda: self._store.ring(self._worker))
        until_s = self._clock.monotonic() + (0.0 if self._store_away else _STOP_S)
        for duty in (*others, self._leases):
            if not (duty.stop(max(0.0, until_s - self._clock.monotonic())) or self._store_away):
                log.warning("duty.hangs", duty=duty.work.name)
        self._engine_stop.set()
        self._engine.wake()
        self._engine_thread.join(_STOP_S)
        # Admission must stop counting this worker's slots. If the store cannot be reached now, the slots are counted
        # until five seconds after the last heartbeat.
        self._call_store(lambda: self._store.farewell(self._worker, self._heartbeat.model, fault=self._fault))
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

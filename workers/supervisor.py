"""Starts a worker's duties in order, waits, drains, and stops them in the reverse order.

Signals only put a word into a queue; everything is decided on the main thread, here. A drain claims
nothing more, lets what runs end, and gives back what does not end in time, uncounted. In the worst
case the process is killed in between: the leases lapse and others take over.
"""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import FrameType

import structlog

from shared.clock import Clock
from shared.errors import SettingsConflict, StoreUnavailable
from shared.settings.settings import Settings
from shared.store.reaper import Reaper
from shared.store.store import Store
from workers.duties.audit import Audit
from workers.duties.claimed_jobs import key_of
from workers.duties.doorbell import Doorbell
from workers.duties.heartbeat import Heartbeat
from workers.duties.job_loop import JobLoop
from workers.duties.leases import Leases
from workers.duties.load_log import LoadLog
from workers.duties.reconciler import Reconciler
from workers.duties.watchdog import Watchdog
from workers.duty import Duty
from workers.exit_codes import ExitCode
from workers.rqworker import RqWorker

log = structlog.get_logger()

#: What the end of a grace period keeps for giving jobs back, and the share of a short one that it may take.
_GIVE_BACK_S, _GIVE_BACK_SHARE = 1.0, 0.1
#: How often the main thread looks for signals that did not wake it.
_LOOK_S = 0.25
#: How often a drain looks whether it is done.
_DRAIN_LOOK_S = 0.02
#: How long a drain with nothing left to do waits for a claim's answer: longer than a store that is up takes to give it.
#: What a store that is away may have leased to us lapses.
_UNANSWERED_S = 2.0
#: How long a drain's end waits for the last step's tokens to be counted.
_BOOKS_S = 0.5
#: How long the duties may take to end their passes, and the engine its step: longer than any call to the store.
_STOP_S = 6.0
#: One request reaches a child twice: Ctrl-C by the terminal and by its parent, and a service manager that signals every
#: process of a group by itself and by `up`. Signals this close are one.
_SAME_REQUEST_S = 1.0


@dataclass(frozen=True)
class _Notice:
    """Why the main thread wakes: a signal's name, or the exit code that some thread asks for."""

    signal: str = ""
    code: ExitCode = ExitCode.DRAINED
    why: str = ""


class Supervisor:
    """One worker from its first beat to its last."""

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
        #: Whether the store was seen not to answer since the end began: nothing more is asked of it.
        self._away = False
        self._engine_stop = threading.Event()
        self._engine_thread = threading.Thread(target=self._run_engine, name="engine", daemon=True)
        self._rq = RqWorker(self._worker, store.client, self._serve)
        #: First: until its first beat is answered, nothing is claimed; what is claimed is kept.
        self._leases = Duty(self._make_leases(), self._duty_died)
        #: In the order in which they start.
        self._duties = [
            self._leases,
            Duty(Reaper(store), self._duty_died),
            Duty(Reconciler(store), self._duty_died),
            # Before the doorbell, which wakes it.
            Duty(job_loop, self._duty_died, job_loop.wake),
            Duty(self._make_doorbell(), self._duty_died),
            # Last: they look at what the others do.
            Duty(self._make_watchdog(), self._duty_died),
            Duty(LoadLog(self._engine, self._claimed_jobs, clock), self._duty_died),
            Duty(Audit(store, self._claimed_jobs, clock), self._duty_died),
        ]

    def _make_leases(self) -> Leases:
        return Leases(
            self._store,
            claimed_jobs=self._claimed_jobs,
            engine=self._engine,
            lease_ms=self._settings.lease_ms,
            beat=self._heartbeat.beat,
            on_drain=self._pause,
            on_stranger=self._introduce,
        )

    def _make_doorbell(self) -> Doorbell:
        return Doorbell(
            self._store,
            self._worker,
            self._heartbeat.model,
            claimed_jobs=self._claimed_jobs,
            engine=self._engine,
            pool=self._job_loop.pool,
            has_room=lambda: self._claimer.has_room,
            on_work=self._job_loop.look_for_work,
        )

    def _make_watchdog(self) -> Watchdog:
        stats = self._engine.stats
        return Watchdog(
            stall_ms=self._settings.stall_ms,
            clock=self._clock,
            busy=self._busy,
            tokens=lambda: stats.prompt_tokens + stats.completion_tokens,
        )

    def run(self) -> ExitCode:
        """Serve until a signal or a fault, then drain or not. The exit code."""
        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, self._on_signal)
        self._rq.work()
        return self._exit

    def _serve(self) -> bool:
        """What RQ's record of this worker covers: from the first beat until the last job is out of our hands."""
        self._engine_thread.start()
        for duty in self._duties:
            duty.start()
        # Never an endless wait: of two signals at once another thread may take both off the kernel's hands,
        # and then nothing interrupts this one, which alone may run their handlers.
        while (notice := self._next_notice(_LOOK_S)) is None:
            pass
        if notice.signal:
            self._drain(notice.signal)
        else:
            self._exit = notice.code
            log.error("worker.ending", why=notice.why, exit=int(notice.code))
            if notice.code is ExitCode.CONFIG_LOST:
                self._claimer.closed = True
                self._give_back()
        self._stop()
        self._note_late_faults()
        return True

    # Called by other threads or by signals: each only leaves a word.

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # SimpleQueue.put may be interrupted by itself, which a lock may not.
        self._notices.put(_Notice(signal=signal.Signals(number).name))

    def _duty_died(self, name: str) -> None:
        self._notices.put(_Notice(code=ExitCode.DUTY, why=f"the duty {name} failed too often"))

    def _run_engine(self) -> None:
        try:
            self._engine.run(self._engine_stop)
        except Exception as fault:
            log.exception("engine.fault")
            self._notices.put(_Notice(code=ExitCode.ENGINE, why=f"the engine's loop ended: {fault}"))

    # Called by duties.

    def _pause(self, asked: bool) -> None:
        """The store has answered a beat: claim, or not while an operator's drain lasts; the process stays."""
        if asked != self._claimer.paused:
            log.info("worker.paused" if asked else "worker.claiming")
            self._claimer.paused = asked
            self._heartbeat.draining = asked or self._claimer.closed
            if asked:
                self._engine.recall()
            self._job_loop.look_for_work()

    def _introduce(self) -> None:
        """The store does not know this worker: it is new, was long away, or the store came back empty."""
        try:
            self._store.configure(self._settings)
        except SettingsConflict as conflict:
            self._notices.put(_Notice(code=ExitCode.CONFIG_LOST, why=str(conflict)))
            return
        self._rq.register_birth()

    # Draining and stopping, on the main thread.

    def _drain(self, sign: str) -> None:
        grace_s = self._settings.drain_grace_ms / 1000
        log.info("worker.draining", signal=sign, held=len(self._claimed_jobs), grace_s=grace_s)
        self._claimer.closed = True
        self._heartbeat.draining = True
        self._leases.wake()
        self._job_loop.wake.set()
        began_s = self._clock.monotonic()
        until_s = began_s + grace_s - min(_GIVE_BACK_S, grace_s * _GIVE_BACK_SHARE)
        while not self._done(began_s) and self._clock.monotonic() < until_s:
            # Another worker can begin at once what would wait here for a slot; asked again, for a claim that was
            # under way comes in later.
            self._engine.recall()
            notice = self._next_notice(_DRAIN_LOOK_S)
            if notice is None:
                continue
            if notice.code is not ExitCode.DRAINED:
                self._exit = notice.code
                log.error("worker.ending", why=notice.why, exit=int(notice.code))
                return
            if self._clock.monotonic() - began_s > _SAME_REQUEST_S:
                log.warning(
                    "worker.forced", signal=notice.signal, held=len(self._claimed_jobs), exit=int(ExitCode.FORCED)
                )
                os._exit(ExitCode.FORCED)
        if not self._done(began_s):
            self._give_back()
        self._away |= self._claimer.asking and self._clock.monotonic() - began_s >= _UNANSWERED_S

    def _done(self, began_s: float) -> bool:
        """Whether a drain that began then has nothing to wait for."""
        if len(self._claimed_jobs) or self._delivery.owes:
            return False
        return not self._claimer.asking or self._clock.monotonic() - began_s >= _UNANSWERED_S

    def _next_notice(self, wait_s: float) -> _Notice | None:
        try:
            return self._notices.get(timeout=wait_s)
        except Empty:
            return None

    def _give_back(self) -> None:
        """What did not end in time: dropped in the engine first, so that nothing more is computed for it."""
        held = self._claimed_jobs.named()
        for job in held:
            self._engine.cancel(key_of(job), drop=True)
        try:
            released = self._store.release(self._worker, held) if held else 0
        except StoreUnavailable as error:
            self._away = True
            log.warning("worker.not_given_back", held=len(held), error=str(error))
            return
        for job in held:
            self._claimed_jobs.let_go(key_of(job))
        log.info("worker.gave_back", held=len(held), released=released)
        self._tell_what_was_computed()

    def _tell_what_was_computed(self) -> None:
        """The books get what the engine did for jobs that went back, if its step is soon over."""
        until_s = self._clock.monotonic() + _BOOKS_S
        while self._clock.monotonic() < until_s and (self._busy() or self._delivery.owes):
            self._job_loop.wake.set()
            # Not a wait for notices, which would lose them: nobody sets this before the loop is over.
            self._engine_stop.wait(_DRAIN_LOOK_S)

    def _note_late_faults(self) -> None:
        """What failed when nobody looked any more is told by the exit code."""
        while (notice := self._next_notice(0)) is not None:
            if notice.code is not ExitCode.DRAINED and self._exit is ExitCode.DRAINED:
                self._exit = notice.code
                log.error("worker.ending", why=notice.why, exit=int(notice.code))

    def _busy(self) -> bool:
        return self._engine.room().slots < self._engine.backend.slots

    def _stop(self) -> None:
        """The leases last: until then what runs is ours. A store that does not answer is waited for once in all."""
        others = [duty for duty in reversed(self._duties) if duty is not self._leases]
        for duty in others:
            duty.ask_stop()
        # The bell waits at the store.
        self._tell(lambda: self._store.ring(self._worker))
        until_s = self._clock.monotonic() + (0.0 if self._away else _STOP_S)
        for duty in (*others, self._leases):
            if not (duty.stop(max(0.0, until_s - self._clock.monotonic())) or self._away):
                log.warning("duty.hangs", duty=duty.work.name)
        self._engine_stop.set()
        self._engine.wake()
        self._engine_thread.join(_STOP_S)
        # Nobody shall count on these slots; without a store they are forgotten five seconds after the last beat.
        self._tell(lambda: self._store.farewell(self._worker, self._heartbeat.model))
        self._rq.mute = self._away
        log.info("worker.stopped", exit=int(self._exit))

    def _tell(self, word: Callable[[], object]) -> None:
        """A last word to the store, unless it was seen not to answer."""
        try:
            if not self._away:
                word()
        except StoreUnavailable as error:
            self._away = True
            log.warning("store.untold", error=str(error))

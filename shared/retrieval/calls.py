"""Runs work on a few connections: each has a thread of its own, and callers wait no longer than they want to.

    caller: run(…) ── puts a call into the list ── waits for its end, at most until its time ── leaves
    thread of a connection: connects ── takes a call whose tenant has a free share ── runs it to its end

Tenants take turns, whatever the number of their calls. A call that waits for a lock of another process returns to the
list, so that it does not keep its connection from others meanwhile.

A caller that leaves does not stop its call: the connection's thread waits until the server has canceled the statement,
which it does at the same time. Opening a connection, however long that takes, holds no caller beyond its time either.
In a door, the threads are gevent's greenlets.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import psycopg

from shared.log import get_logger
from shared.retrieval.connecting import Connection, NoAnswer, reason_of
from shared.retrieval.errors import DatabaseAway, OutOfTime, RetrievalError

log = get_logger()

#: How long the server may take to answer after the end of a call's time, in seconds. Then its connection is closed.
GRACE_S = 1.0
#: After a connection could not be opened, the next is tried after this time, in seconds. Until then calls fail at once.
_RETRY_S = 1.0
#: If no connection is open and one is being opened for longer, calls fail at once.
_PATIENCE_S = 1.0
#: The most calls that wait for a connection, and the most of one tenant.
_MAX_WAITING, _MAX_WAITING_OF_TENANT = 1_000, 250

T = TypeVar("T")


class Call(Generic[T]):
    """One call: `work` runs on a connection. `partial` is what it has found so far, for a caller that has to leave."""

    def __init__(
        self, tenant: str, work: "Callable[[Connection, Call[T]], T]", until_s: float, *, writes: bool
    ) -> None:
        self.tenant, self.work, self.until_s, self.writes = tenant, work, until_s, writes
        #: The calls that share connections with this one: those of its tenant, or all writes.
        self.share = None if writes else tenant
        self.partial: T | None = None
        self.result: T | None = None
        self.error: BaseException | None = None
        self.started = False
        #: How often its connection was lost.
        self.lost = 0
        self.ended = threading.Event()

    def end(self, *, result: T | None = None, error: BaseException | None = None) -> None:
        self.result, self.error = result, error
        self.ended.set()


class Calls:
    """The connections of one process, and the calls that wait for one.

    `open_connection` opens a connection or raises DatabaseAway. `size` is the greatest number of connections, at least
    3. All writes together use at most a quarter of them, and the other calls of one tenant at most half, so that one
    tenant never occupies all. `clock` is time.monotonic, except in tests.
    """

    def __init__(
        self, open_connection: Callable[[], Connection], size: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._open, self._size, self._clock = open_connection, size, clock
        self._write_share = max(1, size // 4)
        self._tenant_share = max(1, min(size // 2, size - self._write_share - 1))
        self._condition = threading.Condition()
        self._waiting: deque[Call[Any]] = deque()
        #: How many calls run of each tenant, and how many writes (None).
        self._running: Counter[str | None] = Counter()
        #: The number of the next turn of a tenant that has had the current one, or a later one.
        self._turn, self._turns = 0, dict[str, int]()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        #: The open connections.
        self._connected = 0
        #: Since when a first connection is being opened, and why the last one could not be opened.
        self._opening_since_s: float | None = None
        self._away, self._away_until_s = "", float("-inf")
        self._closed = False

    @property
    def connected(self) -> int:
        """The number of open connections."""
        return self._connected

    def run(self, tenant: str, work: Callable[[Connection, Call[T]], T], until_s: float, *, writes: bool = False) -> T:
        """Run `work` on a connection and return its result, or what it had found when the time was over.

        Raises DatabaseAway, OutOfTime, and what `work` raises.
        """
        call = Call(tenant, work, until_s, writes=writes)
        with self._condition:
            self._check_open(tenant)
            self._waiting.append(call)
            if len(self._waiting) > self._idle and len(self._threads) < self._size:
                self._start_thread()
            self._condition.notify()
        try:
            call.ended.wait(max(0.0, until_s - self._clock()))
        finally:
            with self._condition:
                if not call.started and not call.ended.is_set():
                    self._waiting.remove(call)
        if call.ended.is_set():
            if call.error is not None:
                raise call.error
            return call.result  # type: ignore[return-value]  # a call that has ended has a result or an error
        if call.partial is not None:
            return call.partial
        if not call.started and not self._connected:
            raise DatabaseAway(self._away or "no connection could be opened in time")
        raise OutOfTime(started=call.started)

    def close(self, wait_s: float = 0.0) -> None:
        """Close all connections, and wait at most `wait_s` for that. Calls that wait or come later fail."""
        with self._condition:
            self._closed = True
            self._fail_waiting("this process is ending")
            self._condition.notify_all()
            threads = list(self._threads)
        until_s = time.monotonic() + wait_s
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _check_open(self, tenant: str) -> None:
        """Raise DatabaseAway or OutOfTime if a call of a tenant cannot be run now. The lock is held."""
        now_s = self._clock()
        if self._closed:
            raise DatabaseAway("this process is ending")
        if self._connected == 0:
            if now_s < self._away_until_s:
                raise DatabaseAway(self._away)
            if self._opening_since_s is not None and now_s - self._opening_since_s > _PATIENCE_S:
                raise DatabaseAway(f"it has not answered for {now_s - self._opening_since_s:.0f} s")
        waiting = len(self._waiting)
        if waiting >= _MAX_WAITING_OF_TENANT and (
            waiting >= _MAX_WAITING or sum(call.tenant == tenant for call in self._waiting) >= _MAX_WAITING_OF_TENANT
        ):
            raise OutOfTime(started=False)

    def _start_thread(self) -> None:
        """Start the thread of a further connection. The lock is held."""
        thread = threading.Thread(target=self._serve, name="retrieval-connection", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # the process can have no more threads
            self._threads.discard(thread)

    def _serve(self) -> None:
        """Run calls on one connection until the process ends, or until no connection can be opened."""
        connection: Connection | None = None
        try:
            while True:
                if connection is None and (connection := self._connect()) is None:
                    return
                call = self._take()
                if call is None:
                    return
                if not self._run(call, connection):
                    self._disconnect(connection)
                    connection = None
        finally:
            if connection is not None:
                self._disconnect(connection)
            with self._condition:
                self._threads.discard(threading.current_thread())

    def _connect(self) -> Connection | None:
        """Open a connection, or fail the waiting calls if that is not possible and no other connection is open."""
        with self._condition:
            if self._opening_since_s is None:
                self._opening_since_s = self._clock()
        try:
            connection = self._open()
        except Exception as error:  # noqa: BLE001 - each waiting call gets it
            reason = error.reason if isinstance(error, DatabaseAway) else f"{type(error).__name__}"
            log.warning("retrieval.away", reason=reason)
            with self._condition:
                self._opening_since_s = None
                self._away, self._away_until_s = reason, self._clock() + _RETRY_S
                if self._connected == 0:
                    self._fail_waiting(reason)
            return None
        with self._condition:
            self._connected += 1
            self._opening_since_s = None
            self._away, self._away_until_s = "", float("-inf")
        return connection

    def _disconnect(self, connection: Connection) -> None:
        connection.close()
        with self._condition:
            self._connected -= 1

    def _take(self) -> Call[Any] | None:
        """Wait for a call whose tenant has a free share, and return it; None if the process ends."""
        with self._condition:
            while not self._closed:
                eligible = filter(self._has_share, self._waiting)
                # Of several with the same turn, the first one.
                call = min(eligible, key=lambda call: self._turns.get(call.tenant, 0), default=None)
                if call is not None:
                    self._waiting.remove(call)
                    call.started = True
                    self._running[call.share] += 1
                    self._turn = max(self._turn, self._turns.get(call.tenant, 0))
                    self._turns[call.tenant] = self._turn + 1
                    if len(self._turns) > _MAX_WAITING:
                        self._turn += 1
                        self._turns = {tenant: turn for tenant, turn in self._turns.items() if turn > self._turn}
                    return call
                self._idle += 1
                self._condition.wait()
                self._idle -= 1
        return None

    def _has_share(self, call: Call[Any]) -> bool:
        # A look-up of a Counter adds nothing to it.
        return self._running[call.share] < (self._write_share if call.writes else self._tenant_share)

    def _run(self, call: Call[Any], connection: Connection) -> bool:
        """Run a call, and return whether its connection can be used again."""
        connection.deadline_s = call.until_s + GRACE_S
        is_usable = False
        try:
            call.end(result=call.work(connection, call))
            is_usable = True
        except RetrievalError as error:
            call.end(error=error)
            is_usable = True
        except psycopg.errors.LockNotAvailable:
            self._later(call)
            is_usable = True
        except psycopg.errors.QueryCanceled:
            call.end(error=OutOfTime(started=True))
            is_usable = True
        except psycopg.errors.ReadOnlySqlTransaction as error:
            # The server may have become a standby. A new connection may reach the primary.
            call.end(error=DatabaseAway(reason_of(error)))
        except NoAnswer:
            call.end(error=OutOfTime(started=True))
        except psycopg.Error as error:
            ended = isinstance(error, psycopg.OperationalError) and (error.sqlstate or "57P").startswith("57P")
            if connection.closed or ended:
                self._again(call, error)
                return False
            log.warning("retrieval.refused", reason=reason_of(error))
            call.end(error=DatabaseAway(reason_of(error)))
            is_usable = True
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            call.end(error=error)
        finally:
            with self._condition:
                self._running[call.share] -= 1
                if not self._running[call.share]:
                    del self._running[call.share]
                # Its end may have made a call eligible that another idle thread can take.
                self._condition.notify()
        idle = psycopg.pq.TransactionStatus.IDLE
        return is_usable and not connection.closed and connection.info.transaction_status == idle

    def _later(self, call: Call[Any]) -> None:
        """Put a call back that has waited for a lock, behind the other calls, if it has time left."""
        with self._condition:
            if self._closed or self._clock() >= call.until_s:
                call.end(error=OutOfTime(started=True))
                return
            call.started = False
            self._waiting.append(call)

    def _again(self, call: Call[Any], error: psycopg.Error) -> None:
        """Put a call back whose connection was lost: the server may have been restarted since the connection was used.

        As many connections as the process has may have been lost in the same way.
        """
        with self._condition:
            call.lost += 1
            if call.lost > self._size or self._closed or self._clock() >= call.until_s:
                call.end(error=DatabaseAway(reason_of(error)))
                return
            call.started = False
            self._waiting.appendleft(call)

    def _fail_waiting(self, reason: str) -> None:
        for call in self._waiting:
            call.end(error=DatabaseAway(reason))
        self._waiting.clear()

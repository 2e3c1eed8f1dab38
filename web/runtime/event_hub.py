"""Follow the event streams of all jobs that clients of this process wait for, with one blocking read at a time.

A follower names a stream id and receives every later event exactly once, in order. If the hub has already read past
that id, the follower reads the events in between from the store itself (`Follower.read_missed`).
"""

import math
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

import redis

from shared.errors import StoreUnavailable
from shared.log import get_logger
from shared.store import keys
from shared.store.redis_errors import store_faults
from shared.store.store import Store

log = get_logger()

Event = tuple[str, dict[str, str]]

#: The longest time for which one read blocks, in ms. If a follower joins during the read, the hub ends the read early
#: by adding an entry to its wake-up stream.
BLOCK_MS = 1_000
#: The time to live of the wake-up stream, in seconds. Each entry renews it, so the key disappears after the process
#: has ended.
_WAKEUP_STREAM_TTL_S = 60
#: How long to wait before the next read after an error or while the store does not answer, in seconds.
_AWAY_S = 0.25
#: How often the hub ends the waits of followers that have waited long enough, in seconds. A timer for each wait would
#: make a text a tenth more expensive. Shorter waits than the second value have a timer.
_TICK_S, _TIMED_S = 0.05, 0.15
#: After this many followers that get events, new requests and first texts have their turn. gevent looks for what has
#: arrived meanwhile only while nobody can run, or in a pause that takes time.
_TOGETHER, _PAUSE_S = 8, 1e-6


def later(one: str, other: str) -> bool:
    """Return whether stream id `one` (`ms-number`, or `0`) is greater than `other`; both may have further numbers."""
    if len(one) == len(other) and one.find("-") == one.rfind("-") == other.find("-") == other.rfind("-"):
        # Numbers with as many digits are in the order of their texts.
        return one > other
    return [*map(int, one.split("-"))] > [*map(int, other.split("-"))]


class Follower:
    """One reader of one job's events. Use it as a context manager, or call `close`."""

    def __init__(self, hub: "EventHub", job_id: str, after: str) -> None:
        self.job_id = job_id
        self._hub = hub
        self._last_id = after
        #: Whether the hub has already read past `after`. If so, only `read_missed` returns the events in between.
        self.behind = False
        #: An event, or None to end a wait.
        self._queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        #: When the wait for the next event ends, as monotonic time; infinity outside of a wait.
        self._waits_until_s = math.inf
        #: Whether a text was among the events. Only the hub uses it.
        self.has_text = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop following the job."""
        self._hub.leave(self)

    def put(self, event: Event) -> None:
        """Add an event to the follower's queue; only the hub calls this."""
        self.has_text = self.has_text or event[1].get("type") == "token"
        self._queue.put(event)

    def end_wait(self, now_s: float) -> None:
        """End the wait for an event if it is over; only the hub calls this."""
        if now_s >= self._waits_until_s:
            self._waits_until_s = math.inf
            self._queue.put(None)

    def read_missed(self) -> Iterator[Event]:
        """Yield the events in the store that are later than the last one that this follower returned.

        Does not wait for new events. Yields nothing if the job's key is not a stream. Raises StoreUnavailable.
        """
        try:
            events = self._hub.store.read_events({self.job_id: self._last_id}, block_ms=0).get(self.job_id, [])
        except redis.ResponseError:
            return
        for event in events:
            if later(event[0], self._last_id):
                self._last_id = event[0]
                yield event

    def next(self, timeout_s: float) -> Event | None:
        """Return the next event, or None if none arrives within `timeout_s`."""
        until_s = time.monotonic() + timeout_s
        while True:
            event = self._get(until_s, timeout_s)
            if event is not None and later(event[0], self._last_id):
                self._last_id = event[0]
                return event
            timeout_s = until_s - time.monotonic()
            if event is None and timeout_s <= 0:
                return None

    def _get(self, until_s: float, timeout_s: float) -> Event | None:
        """Return the next event, or None if none arrives until then. It may return None earlier."""
        if timeout_s < _TIMED_S:
            with suppress(queue.Empty):
                return self._queue.get(timeout=max(0.0, timeout_s))
            return None
        self._waits_until_s = until_s
        try:
            return self._queue.get()
        finally:
            self._waits_until_s = math.inf


class EventHub:
    """Reads the event streams for all followers in one thread, which starts with the first follower."""

    def __init__(self, store: Store, on_followed: Callable[[int], None] = lambda _: None) -> None:
        """`on_followed` is called with the number of followed jobs when that may have grown, and before each read."""
        self.store = store
        self._on_followed = on_followed
        self._lock = threading.Lock()
        #: Guarded by the lock: the followers of each job, and the stream id up to which each job's stream was read.
        self._followers: dict[str, list[Follower]] = {}
        self._read_to: dict[str, str] = {}
        #: Guarded by the lock: the jobs whose streams had no event yet. Their stream id in `_read_to` is the one that a
        #: follower asked for, which no read has confirmed.
        self._unverified: set[str] = set()
        #: Followers that have left, and that are still among those above. Any thread may append to it at any time.
        self._left: deque[Follower] = deque()
        self._thread: threading.Thread | None = None
        #: Guarded by the lock: whether a thread runs that ends waits.
        self._ends_waits = False
        self._has_followers = threading.Event()
        #: The hub's own stream. Every read includes this stream, so that adding an entry to it ends a blocking read.
        self._wakeup_stream = f"door-{secrets.token_hex(8)}"
        self._wakeup_read_to = "0"
        #: Guarded by the lock: whether a read is blocking, and whether it is already being ended for a new follower.
        self._blocked = False
        self._woken = False
        #: Whether the thread ends when the last follower has left.
        self._closed = False

    def follow(self, job_id: str, after: str = "0") -> Follower:
        """Return a follower of a job's events after the given stream id.

        If the follower's `behind` is true, the caller must read all events of `read_missed` before it calls `next`.
        """
        follower = Follower(self, job_id, after)
        with self._locked():
            self._followers.setdefault(job_id, []).append(follower)
            read_to = self._read_to.get(job_id)
            if read_to is not None and job_id in self._unverified and later(read_to, after):
                # `read_to` is an id that a client sent, and it may lie in the future. A read from such an id would find
                # no event for any follower of the job. The lower id, `after`, therefore replaces it.
                read_to = None
            if read_to is None:
                self._read_to[job_id] = after
                self._unverified.add(job_id)
            # The hub does not read earlier events again for a new follower, which gets them from `read_missed`.
            follower.behind = read_to is not None and later(read_to, after)
            must_wake = self._blocked and not self._woken and read_to is None
            self._woken = self._woken or must_wake
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hub", daemon=True)
                self._thread.start()
            if not self._ends_waits:
                threading.Thread(target=self._end_waits, name="hub-waits", daemon=True).start()
                self._ends_waits = True
            self._on_followed(len(self._followers))
        self._has_followers.set()
        if must_wake:
            self._wake_reader()
        return follower

    def close(self) -> None:
        """End the thread as soon as nobody follows a job."""
        self._closed = True
        self._has_followers.set()

    def leave(self, follower: Follower) -> None:
        """Remove a follower. Removing it a second time has no effect.

        This may be called anywhere, also by the garbage collector while this thread holds the lock, or one of the
        metrics: when it drops a stream that nobody has closed. It therefore waits for nothing.
        """
        self._left.append(follower)
        self._drop_left()

    def _drop_left(self) -> None:
        """Remove the followers that have left, unless the lock is held: whoever holds it does this afterwards."""
        while self._left and self._lock.acquire(blocking=False):
            try:
                while self._left:
                    self._drop(self._left.popleft())
            finally:
                self._lock.release()

    def _drop(self, follower: Follower) -> None:
        others = self._followers.get(follower.job_id, [])
        if follower in others:
            others.remove(follower)
        if not others:
            self._followers.pop(follower.job_id, None)
            self._read_to.pop(follower.job_id, None)
            self._unverified.discard(follower.job_id)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            self._drop_left()

    @property
    def followed(self) -> int:
        """The number of jobs that have at least one follower."""
        return len(self._followers)

    def _wake_reader(self) -> None:
        """End the read that is blocking, because it does not include the stream of the newest follower."""
        key = keys.events(self._wakeup_stream)
        try:
            with store_faults(self.store.client):
                pipe = self.store.client.pipeline(transaction=False)
                pipe.xadd(key, {"type": "knock"}, maxlen=1, approximate=False)
                pipe.expire(key, _WAKEUP_STREAM_TTL_S)
                pipe.execute()
        except StoreUnavailable:
            # The blocking read ends by itself within BLOCK_MS, and the next read includes all followers.
            log.debug("hub.knock_failed")

    def _run(self) -> None:
        while True:
            self._has_followers.wait()
            if self._closed and self._has_ended():
                return
            try:
                self._read_once()
            except StoreUnavailable as error:
                log.warning("hub.store_away", error=str(error))
                threading.Event().wait(_AWAY_S)
            except Exception:
                # The loop must survive any error, because all followers depend on the next read.
                log.exception("hub.failed")
                threading.Event().wait(_AWAY_S)

    def _has_ended(self) -> bool:
        with self._locked():
            if not self._followers:
                self._thread = None
                self._on_followed(0)
            return self._thread is None

    def _end_waits(self) -> None:
        """End the waits that are over, as long as there are followers."""
        #: This event is never set. Waiting for it is a sleep.
        pause = threading.Event()
        while True:
            pause.wait(_TICK_S)
            try:
                with self._locked():
                    if not self._followers:
                        self._ends_waits = False
                        return
                    self._end_those_before(time.monotonic())
            except Exception:
                # The loop must survive any error, because all waits depend on it.
                log.exception("hub.waits_failed")

    def _end_those_before(self, now_s: float) -> None:
        for followers in self._followers.values():
            for follower in followers:
                follower.end_wait(now_s)

    def _read_once(self) -> None:
        """Wait up to BLOCK_MS for new events of the followed jobs, and pass the events to the followers.

        Raises StoreUnavailable.
        """
        with self._locked():
            after = dict(self._read_to)
            self._on_followed(len(self._followers))
            if not after:
                if not self._closed:
                    self._has_followers.clear()
                return
            self._blocked, self._woken = True, False
        try:
            received = self.store.read_events(after | {self._wakeup_stream: self._wakeup_read_to}, block_ms=BLOCK_MS)
        except redis.ResponseError:
            self._stop_reading_wrong_types(after)
            return
        finally:
            with self._locked():
                self._blocked = False
        for event_id, _ in received.pop(self._wakeup_stream, []):
            self._wakeup_read_to = event_id
        found: list[tuple[Follower, list[Event]]] = []
        with self._locked():
            for job_id, events in received.items():
                # If `_read_to` of the job changed during this read, followers have left or joined meanwhile. These
                # events are skipped, because the next read starts at the new id.
                if not events or self._read_to.get(job_id) != after[job_id]:
                    continue
                self._read_to[job_id] = events[-1][0]
                self._unverified.discard(job_id)
                found += ((follower, events) for follower in self._followers.get(job_id, ()))
        self._hand_out(found)

    @staticmethod
    def _hand_out(found: list[tuple[Follower, list[Event]]]) -> None:
        """Pass events to the followers: first to those that have had no text, then to a few others at a time."""
        found.sort(key=lambda each: each[0].has_text)
        for number, (follower, events) in enumerate(found):
            if number % _TOGETHER == 0 and follower.has_text:
                time.sleep(_PAUSE_S)
            for event in events:
                follower.put(event)

    def _stop_reading_wrong_types(self, after: dict[str, str]) -> None:
        """Stop reading the keys that another program has replaced with something other than a stream.

        A single wrong key makes the read of all streams fail. The routes that follow the job of such a key still
        read the job's state periodically (web/jobs/event_stream.py).
        """
        for job_id, last_id in after.items():
            try:
                self.store.read_events({job_id: last_id}, block_ms=0)
            except redis.ResponseError as error:
                log.warning("hub.unreadable", job=job_id, error=str(error))
                with self._locked():
                    self._read_to.pop(job_id, None)

"""Follows the event streams of all jobs that anybody here waits for, on one connection to the store.

A follower gets every event after the stream id it names, each once and in order. Where the hub has read a
stream further than that already, the follower reads what lies between by itself (`missed`).
"""

import queue
import secrets
import threading
from collections.abc import Iterator
from typing import Self

import redis
import structlog

from shared.errors import StoreUnavailable
from shared.store import keys
from shared.store.redis_errors import store_faults
from shared.store.store import Store

log = structlog.get_logger()

Event = tuple[str, dict[str, str]]

#: One read waits this long; a follower that joins meanwhile cuts it short through the hub's own stream.
BLOCK_MS = 1_000
#: The hub's own stream is renewed with each knock and goes with the process.
_KNOCK_TTL_S = 60
#: Rest while the store is away.
_AWAY_S = 0.25


def later(one: str, other: str) -> bool:
    """Whether stream id `one` (`ms-number`, or `0`) comes after `other`."""
    return _order(one) > _order(other)


def _order(stream_id: str) -> tuple[int, int]:
    ms, _, number = stream_id.partition("-")
    return int(ms), int(number or 0)


class Follower:
    """One reader of one job's events. Use it as a context manager, or close it."""

    def __init__(self, hub: "EventHub", job_id: str, after: str) -> None:
        self.job_id = job_id
        self._hub = hub
        self._last = after
        #: Whether the hub has read further already: what lies between comes by `missed` alone.
        self.behind = False
        self._came: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop following."""
        self._hub.leave(self)

    def put(self, event: Event) -> None:
        """Called by the hub alone."""
        self._came.put(event)

    def missed(self) -> Iterator[Event]:
        """What the stream holds so far after the last event; nothing when it is no stream. Raises StoreUnavailable."""
        try:
            events = self._hub.store.read_events({self.job_id: self._last}, block_ms=0).get(self.job_id, [])
        except redis.ResponseError:
            return
        for event in events:
            if later(event[0], self._last):
                self._last = event[0]
                yield event

    def next(self, timeout_s: float) -> Event | None:
        """The next event, or None when none came in time."""
        while True:
            try:
                event = self._came.get(timeout=max(0.0, timeout_s))
            except queue.Empty:
                return None
            if later(event[0], self._last):
                self._last = event[0]
                return event
            timeout_s = 0.0


class EventHub:
    """All followers of this process. Its thread starts with the first of them and ends never."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        #: Under the lock: followers, and the last stream id handed out, by job.
        self._followers: dict[str, list[Follower]] = {}
        self._read_to: dict[str, str] = {}
        #: Under the lock: jobs of which nothing has been read yet, so that `_read_to` is where a client said it was.
        self._unproven: set[str] = set()
        self._thread: threading.Thread | None = None
        self._somebody = threading.Event()
        #: A stream of our own, among those of jobs, so that one read waits for both.
        self._door = f"door-{secrets.token_hex(8)}"
        self._door_read_to = "0"
        #: Under the lock: whether a read is under way that does not know the newest follower.
        self._blocked = False
        self._knocked = False

    def follow(self, job_id: str, after: str = "0") -> Follower:
        """Follow a job's events after the given stream id: first `missed` where it is `behind`, then `next`."""
        follower = Follower(self, job_id, after)
        with self._lock:
            self._followers.setdefault(job_id, []).append(follower)
            read_to = self._read_to.get(job_id)
            if read_to is not None and job_id in self._unproven and later(read_to, after):
                # What a client says may lie in the future, where nothing would ever be read for the others.
                read_to = None
            if read_to is None:
                self._read_to[job_id] = after
                self._unproven.add(job_id)
            # A stream that is followed already is not read again from before: its newcomer has `missed`.
            follower.behind = read_to is not None and later(read_to, after)
            knock = self._blocked and not self._knocked and read_to is None
            self._knocked = self._knocked or knock
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hub", daemon=True)
                self._thread.start()
        self._somebody.set()
        if knock:
            self._knock()
        return follower

    def leave(self, follower: Follower) -> None:
        """Forget a follower; leaving twice is one leaving."""
        with self._lock:
            others = self._followers.get(follower.job_id, [])
            if follower in others:
                others.remove(follower)
            if not others:
                self._followers.pop(follower.job_id, None)
                self._read_to.pop(follower.job_id, None)
                self._unproven.discard(follower.job_id)

    @property
    def followed(self) -> int:
        """How many jobs are followed."""
        return len(self._followers)

    def _knock(self) -> None:
        key = keys.events(self._door)
        try:
            with store_faults(self.store.client):
                pipe = self.store.client.pipeline(transaction=False)
                pipe.xadd(key, {"type": "knock"}, maxlen=1, approximate=False)
                pipe.expire(key, _KNOCK_TTL_S)
                pipe.execute()
        except StoreUnavailable:
            # The read under way ends by itself within BLOCK_MS, and the next knows everybody.
            log.debug("hub.knock_failed")

    def _run(self) -> None:
        while True:
            self._somebody.wait()
            try:
                self.one_read()
            except StoreUnavailable as error:
                log.warning("hub.store_away", error=str(error))
                threading.Event().wait(_AWAY_S)
            except Exception:
                # Whatever it was, all who wait here depend on the next read.
                log.exception("hub.failed")
                threading.Event().wait(_AWAY_S)

    def one_read(self, block_ms: int = BLOCK_MS) -> None:
        """Wait for events of all followed jobs and hand them out. Raises StoreUnavailable."""
        with self._lock:
            after = dict(self._read_to)
            if not after:
                self._somebody.clear()
                return
            self._blocked, self._knocked = True, False
        try:
            came = self.store.read_events(after | {self._door: self._door_read_to}, block_ms=block_ms)
        except redis.ResponseError:
            self._leave_out_unreadable(after)
            return
        finally:
            with self._lock:
                self._blocked = False
        for event_id, _ in came.pop(self._door, []):
            self._door_read_to = event_id
        with self._lock:
            for job_id, events in came.items():
                # Left and joined anew from elsewhere while this read was under way: the next one is theirs.
                if not events or self._read_to.get(job_id) != after[job_id]:
                    continue
                self._read_to[job_id] = events[-1][0]
                self._unproven.discard(job_id)
                for follower in self._followers.get(job_id, ()):
                    for event in events:
                        follower.put(event)

    def _leave_out_unreadable(self, after: dict[str, str]) -> None:
        """A key that somebody made something else of must not silence all others; its followers still look by time."""
        for job_id, last in after.items():
            try:
                self.store.read_events({job_id: last}, block_ms=0)
            except redis.ResponseError as error:
                log.warning("hub.unreadable", job=job_id, error=str(error))
                with self._lock:
                    self._read_to.pop(job_id, None)

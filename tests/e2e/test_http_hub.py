"""The event hub over a real store: one blocking read serves all followers, and none of them misses an event."""

import threading
import time
from collections.abc import Callable

import pytest
import redis

from shared.store import keys
from shared.store.store import Store
from tests.support.builders import a_job, admitted, claim_one, heartbeat
from tests.support.processes import wait_for
from web.runtime.event_hub import Event, EventHub, Follower, later


@pytest.fixture
def hub(store: Store) -> EventHub:
    heartbeat(store)
    return EventHub(store)


def next_event(follower: Follower, timeout_s: float = 10.0) -> Event:
    """Return the next event, which must arrive in time."""
    return wait_for(lambda: follower.next(0.05), "an event", timeout_s=timeout_s)


def a_running_job(store: Store) -> tuple[str, Callable[[str, int], None]]:
    """Claim a job; return its id and a function that appends text to it as its worker."""
    job_id = admitted(store, a_job())
    held = claim_one(store).held
    return job_id, lambda text, tokens: store.append([(held, text, tokens)]) and None


def test_a_new_follower_gets_events_at_once_during_a_read_that_does_not_include_its_job(
    hub: EventHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A read that nobody wakes lasts for as long as the store's client allows.
    monkeypatch.setattr("web.runtime.event_hub.BLOCK_MS", 5_000)
    silent, _ = a_running_job(store)
    other, append_text = a_running_job(store)
    with hub.follow(silent) as first:
        assert next_event(first)[1]["type"] == "started"
        for _ in range(5):
            time.sleep(0.02)  # the current read blocks on the events of `silent` only
            with hub.follow(other) as second:
                assert next_event(second, timeout_s=4)[1]["type"] == "started"
        append_text("a", 1)


def test_a_follower_gets_earlier_and_later_events_exactly_once(hub: EventHub, store: Store) -> None:
    job_id, append_text = a_running_job(store)
    append_text("a", 1)
    with hub.follow(job_id) as early:
        assert [next_event(early)[1].get("text") for _ in range(2)] == [None, "a"]
        append_text("b", 2)
        with hub.follow(job_id) as late:
            missed = [event[1].get("text") for event in late.read_missed()]
            append_text("c", 3)
            rest = [next_event(late)[1].get("text") for _ in range(3 + 1 - len(missed))]
            assert missed + rest == [None, "a", "b", "c"]
            assert late.next(0.2) is None


def test_a_follower_may_start_in_the_middle_of_a_stream(hub: EventHub, store: Store) -> None:
    job_id, append_text = a_running_job(store)
    append_text("a", 1)
    with hub.follow(job_id) as follower:
        next_event(follower)
        middle = next_event(follower)[0]
    append_text("b", 2)
    with hub.follow(job_id, after=middle) as follower:
        assert next_event(follower)[1]["text"] == "b"


class DelayedStore(Store):
    """A store whose answers to blocking reads can be delayed."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self.free, self.held = threading.Event(), threading.Event()
        self.free.set()

    def read_events(self, after: dict[str, str], *, block_ms: int) -> dict[str, list[Event]]:
        answer = super().read_events(after, block_ms=block_ms)
        if block_ms and not self.free.is_set() and any(job_id in after for job_id in answer):
            self.held.set()
            self.free.wait(10)
        return answer


def test_a_follower_that_joins_just_after_another_left_misses_nothing(store: Store) -> None:
    heartbeat(store)
    delayed_store = DelayedStore(store.client)
    hub = EventHub(delayed_store)
    job_id, append_text = a_running_job(store)
    with hub.follow(job_id) as leaving:
        next_event(leaving)
        delayed_store.free.clear()
        append_text("a", 1)
        assert delayed_store.held.wait(10)
    # The hub's read has an answer for the position of `leaving`, and the hub does not know yet that it left.
    with hub.follow(job_id) as newcomer:
        delayed_store.free.set()
        assert [next_event(newcomer)[1]["type"] for _ in range(2)] == ["started", "token"]


def test_a_follower_that_starts_after_a_future_event_id_delays_no_other_follower(hub: EventHub, store: Store) -> None:
    job_id, append_text = a_running_job(store)
    with hub.follow(job_id, after="99999999999999-0") as future:
        wait_for(lambda: hub._blocked, "a read that includes only the future event id")
        with hub.follow(job_id) as sound:
            events = list(sound.read_missed()) if sound.behind else [next_event(sound, 1)]
            assert [fields["type"] for _, fields in events] == ["started"]
            append_text("a", 1)
            assert next_event(sound, 1)[1]["text"] == "a"
        assert future.next(0) is None


def test_a_job_is_no_longer_followed_after_its_followers_left(hub: EventHub, store: Store) -> None:
    job_id, _ = a_running_job(store)
    with hub.follow(job_id), hub.follow(job_id):
        assert hub.followed == 1
    assert hub.followed == 0


def test_a_store_key_that_is_not_a_stream_affects_no_other_follower(hub: EventHub, store: Store) -> None:
    broken, _ = a_running_job(store)
    sound, append_text = a_running_job(store)
    store.client.delete(keys.events(broken))
    store.client.set(keys.events(broken), "not a stream", ex=60)
    with hub.follow(broken) as other:
        with hub.follow(sound) as follower:
            assert next_event(follower)[1]["type"] == "started"
            append_text("a", 1)
            assert next_event(follower)[1]["text"] == "a"
        # A wait for an event that cannot come ends all the same.
        assert other.next(0.3) is None
    store.client.delete(keys.events(broken))


def test_a_first_text_is_handed_out_before_the_texts_of_other_jobs(hub: EventHub, store: Store) -> None:
    order: list[str] = []

    class Recorder(Follower):
        def put(self, event: Event) -> None:
            order.append(self.job_id)
            super().put(event)

    event = ("1-0", {"type": "token", "text": "a", "tokens": "1"})
    others = [Recorder(hub, f"j{number}", "0") for number in range(20)]
    EventHub._hand_out([(each, [event]) for each in others])
    new = Recorder(hub, "new", "0")
    order.clear()
    EventHub._hand_out([(each, [event]) for each in (*others, new)])
    assert order == ["new", *(each.job_id for each in others)]


def test_stream_ids_are_ordered_as_numbers() -> None:
    assert later("10-0", "9-0")
    assert later("10-10", "10-9")
    assert later("1-0", "0")
    assert later("1700000000001-0", "1700000000000-9")
    assert later("10-9-1", "10-9")
    assert not later("10-9", "10-9")


def test_a_stream_that_the_garbage_collector_drops_while_another_one_begins_is_left(store: Store) -> None:
    """The collector may run wherever memory is allocated, also where the hub shows how many jobs are followed."""
    dropped: list[Follower] = []
    hub = EventHub(store, on_followed=lambda _: dropped.pop().close() if dropped else None)
    heartbeat(store)
    one, _ = a_running_job(store)
    dropped.append(hub.follow(one))
    ended = threading.Event()
    threading.Thread(target=lambda: (hub.follow(one).close(), ended.set()), daemon=True).start()
    assert ended.wait(20), "the hub waits for itself"
    wait_for(lambda: hub.followed == 0, "nobody to follow the job")


def test_waits_end_in_time_after_an_error_of_the_thread_that_ends_them(
    hub: EventHub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, failed = Follower.end_wait, threading.Event()

    def fail_once(follower: Follower, now_s: float) -> None:
        if not failed.is_set():
            failed.set()
            raise MemoryError
        ends(follower, now_s)

    monkeypatch.setattr(Follower, "end_wait", fail_once)
    with hub.follow(a_running_job(store)[0]) as follower:
        next_event(follower)
        assert failed.wait(20)
        ended = threading.Event()
        threading.Thread(target=lambda: (follower.next(0.3), ended.set()), daemon=True).start()
        assert ended.wait(20)

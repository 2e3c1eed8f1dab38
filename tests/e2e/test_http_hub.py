"""The hub over a real store: one read for all, in which nobody is forgotten."""

import threading
import time
from collections.abc import Callable

import pytest
import redis

from shared.store import keys
from shared.store.store import Store
from tests.support.builders import a_job, admitted, beat, claim_one
from tests.support.processes import wait_for
from web.runtime.event_hub import BLOCK_MS, Event, EventHub, Follower, later


@pytest.fixture
def hub(store: Store) -> EventHub:
    beat(store)
    return EventHub(store)


def heard(follower: Follower, timeout_s: float = 10.0) -> Event:
    """The next event, which must come."""
    return wait_for(lambda: follower.next(0.05), "an event", timeout_s=timeout_s)


def a_running_job(store: Store) -> tuple[str, Callable[[str, int], None]]:
    """A job under a lease, and how its worker tells text."""
    job_id = admitted(store, a_job())
    held = claim_one(store).held
    return job_id, lambda text, tokens: store.append([(held, text, tokens)]) and None


def test_a_newcomer_is_heard_at_once_though_the_read_under_way_does_not_know_it(hub: EventHub, store: Store) -> None:
    silent, _ = a_running_job(store)
    other, tell = a_running_job(store)
    with hub.follow(silent) as first:
        assert heard(first)[1]["type"] == "started"
        for _ in range(5):
            time.sleep(0.02)  # the read under way waits for `silent` alone
            with hub.follow(other) as second:
                began = time.monotonic()
                assert heard(second)[1]["type"] == "started"
                assert time.monotonic() - began < BLOCK_MS / 1000 / 2
        tell("a", 1)


def test_a_follower_hears_what_came_before_it_and_what_comes_each_once(hub: EventHub, store: Store) -> None:
    job_id, tell = a_running_job(store)
    tell("a", 1)
    with hub.follow(job_id) as early:
        assert [heard(early)[1].get("text") for _ in range(2)] == [None, "a"]
        tell("b", 2)
        with hub.follow(job_id) as late:
            missed = [event[1].get("text") for event in late.missed()]
            tell("c", 3)
            rest = [heard(late)[1].get("text") for _ in range(3 + 1 - len(missed))]
            assert missed + rest == [None, "a", "b", "c"]
            assert late.next(0.2) is None


def test_a_follower_may_begin_in_the_middle(hub: EventHub, store: Store) -> None:
    job_id, tell = a_running_job(store)
    tell("a", 1)
    with hub.follow(job_id) as follower:
        heard(follower)
        middle = heard(follower)[0]
    tell("b", 2)
    with hub.follow(job_id, after=middle) as follower:
        assert heard(follower)[1]["text"] == "b"


class HeldUp(Store):
    """The store, whose answers to blocking reads can be held up on their way."""

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


def test_who_joins_where_another_has_just_left_misses_nothing(store: Store) -> None:
    beat(store)
    held_up = HeldUp(store.client)
    hub = EventHub(held_up)
    job_id, tell = a_running_job(store)
    with hub.follow(job_id) as leaving:
        heard(leaving)
        held_up.free.clear()
        tell("a", 1)
        assert held_up.held.wait(10)
    # The hub's read has an answer from where `leaving` stood, and does not know yet that it left.
    with hub.follow(job_id) as newcomer:
        held_up.free.set()
        assert [heard(newcomer)[1]["type"] for _ in range(2)] == ["started", "token"]


def test_a_reader_who_names_a_place_that_is_still_to_come_delays_nobody(hub: EventHub, store: Store) -> None:
    job_id, tell = a_running_job(store)
    with hub.follow(job_id, after="99999999999999-0") as odd:
        wait_for(lambda: hub._blocked, "a read that knows the odd place alone")
        with hub.follow(job_id) as sound:
            events = list(sound.missed()) if sound.behind else [heard(sound, 1)]
            assert [fields["type"] for _, fields in events] == ["started"]
            tell("a", 1)
            assert heard(sound, 1)[1]["text"] == "a"
        assert odd.next(0) is None


def test_who_has_left_is_followed_no_more(hub: EventHub, store: Store) -> None:
    job_id, _ = a_running_job(store)
    with hub.follow(job_id), hub.follow(job_id):
        assert hub.followed == 1
    assert hub.followed == 0


def test_a_key_that_is_no_stream_silences_nobody_else(hub: EventHub, store: Store) -> None:
    broken, _ = a_running_job(store)
    sound, tell = a_running_job(store)
    store.client.delete(keys.events(broken))
    store.client.set(keys.events(broken), "not a stream", ex=60)
    with hub.follow(broken), hub.follow(sound) as follower:
        assert heard(follower)[1]["type"] == "started"
        tell("a", 1)
        assert heard(follower)[1]["text"] == "a"
    store.client.delete(keys.events(broken))


def test_stream_ids_are_ordered_as_numbers() -> None:
    assert later("10-0", "9-0")
    assert later("10-10", "10-9")
    assert later("1-0", "0")
    assert not later("10-9", "10-9")

"""How many webhooks one process sends at once: of one tenant, to one host and in all; and whose turn it is."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from shared import log
from shared.accounts.webhook_secrets import WebhookSecrets
from shared.clock import ManualClock
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from shared.store.webhook_results import WebhookResult
from shared.store.webhooks import ClaimedWebhook
from tests.support.builders import a_job, admitted, advance_clock, heartbeat, hold_clock
from tests.support.processes import wait_for
from tests.support.receiver import SECRET, Receiver
from web.runtime.context import DoorContext
from web.webhooks import post as naming
from web.webhooks import post as posting
from web.webhooks import sender as sending
from web.webhooks.post import AT_ONCE_OF_TENANT as NAMES_OF_TENANT
from web.webhooks.sender import (
    AT_ONCE,
    AT_ONCE_OF_TENANT,
    AT_ONCE_TO_HOST,
    FIRST_REST_MS,
    LONGEST_REST_MS,
    WebhookSender,
)

TENANTS = tuple(f"t{number}" for number in range(20))
HOSTS = tuple(f"h{number}.example" for number in range(6))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        receiver.may_answer.clear()
        yield receiver


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the process that sends."""
    return ManualClock()


@pytest.fixture
def name_server() -> Iterator[threading.Event]:
    """Answers for `silent.example` only after it is set."""
    may_answer = threading.Event()
    yield may_answer
    may_answer.set()


@pytest.fixture
def sender(
    store: Store,
    settings: Settings,
    clock: ManualClock,
    name_server: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[WebhookSender]:
    # No try may end by itself, however slow the machine is.
    monkeypatch.setattr(naming, "RESOLVE_S", 90.0)
    monkeypatch.setattr(posting, "ANSWER_S", 90.0)

    def resolve(host: str, _port: int) -> list[str]:
        if host == "silent.example":
            name_server.wait(60)
        return ["127.0.0.1"]

    for tenant in TENANTS:
        WebhookSecrets(store.client).change(tenant, SECRET)
    heartbeat(store)
    hosts = ",".join(("localhost", "silent.example", *HOSTS))
    sender = WebhookSender(DoorContext(replace(settings, webhook_hosts=hosts), store, clock), resolve)
    yield sender
    # The receiver has answered by now. No try may write to the store while the store is examined.
    name_server.set()
    wait_for(lambda: not sender.open_by_tenant(), "all tries to end", timeout_s=60)


def end_job(store: Store, tenant: str, url: str) -> str:
    job_id = admitted(store, a_job(tenant, callback_url=url))
    store.cancel(job_id)
    return job_id


def start_all(sender: WebhookSender) -> Counter[str]:
    """Start as many tries as the process may; return how many of each tenant are open."""
    while sender.start_next() == 0:
        continue
    return sender.open_by_tenant()


def finish(store: Store, sender: WebhookSender, clock: ManualClock, receiver: Receiver) -> None:
    """Let the receiver answer, and send the rest."""
    receiver.may_answer.set()

    def is_done() -> bool:
        advance_clock(store, LONGEST_REST_MS // 10)
        clock.advance(1)
        start_all(sender)
        return not store.client.keys(keys.webhook("*")) and not sender.open_by_tenant()

    wait_for(is_done, "all webhooks to be told", timeout_s=60)


def test_one_tenant_takes_its_part_of_the_connections_however_many_webhooks_it_has(store, sender, clock, receiver):
    for _ in range(3 * AT_ONCE_OF_TENANT):
        end_job(store, "t0", receiver.url)
    end_job(store, "t1", receiver.url)
    assert start_all(sender) == {"t0": AT_ONCE_OF_TENANT, "t1": 1}
    receiver.wait_for(AT_ONCE_OF_TENANT + 1)
    finish(store, sender, clock, receiver)
    assert len({got.id for got in receiver.received}) == 3 * AT_ONCE_OF_TENANT + 1


def tries(store: Store) -> set[bytes]:
    return {store.client.hget(key, "tries") for key in store.client.keys(keys.webhook("*"))}


def test_one_host_gets_its_part_of_the_connections_and_the_others_wait_without_a_try(store, sender, clock, receiver):
    for tenant in TENANTS[:AT_ONCE_TO_HOST]:
        for _ in range(2):
            end_job(store, tenant, receiver.url)
    assert start_all(sender).total() == AT_ONCE_TO_HOST
    assert len(receiver.wait_for(AT_ONCE_TO_HOST)) == AT_ONCE_TO_HOST
    assert tries(store) == {b"0"}
    finish(store, sender, clock, receiver)


def test_tenants_who_fill_a_host_leave_room_for_the_first_of_each_other_tenant_and_for_other_ports(
    store, sender, clock, receiver
):
    for tenant in TENANTS[:2]:
        for _ in range(AT_ONCE_OF_TENANT):
            end_job(store, tenant, receiver.url)
    assert start_all(sender).total() == AT_ONCE_TO_HOST
    with Receiver() as neighbor:
        for url in (receiver.url, receiver.url, neighbor.url, neighbor.url):
            end_job(store, "t2", url)
            advance_clock(store, 1)
        # The second one to the full port waits, and so does the tenant for a moment.
        assert start_all(sender)["t2"] == 1
        receiver.wait_for(AT_ONCE_TO_HOST + 1)
        clock.advance(1)
        assert start_all(sender)["t2"] >= 1
        neighbor.wait_for(2)
        assert len(receiver.received) == AT_ONCE_TO_HOST + 1
    finish(store, sender, clock, receiver)


def copied(store: Store, webhook_id: str, number: int) -> None:
    """Store copies of a webhook of t0, as if further jobs with it had ended."""
    due, ended = (store.client.zscore(key, webhook_id) for key in (keys.webhook_due("t0"), keys.webhooks()))
    assert due is not None
    assert ended is not None
    pipe = store.client.pipeline(transaction=False)
    for index in range(number):
        pipe.copy(keys.webhook(webhook_id), keys.webhook(f"copy{index}"))
        pipe.zadd(keys.webhook_due("t0"), {f"copy{index}": due})
        pipe.zadd(keys.webhooks(), {f"copy{index}": ended})
    pipe.execute()


def test_thousands_of_webhooks_to_a_full_host_cost_a_claim_in_half_a_second(store, sender, clock, receiver):
    for tenant in TENANTS[1 : AT_ONCE_TO_HOST + 1]:
        end_job(store, tenant, receiver.url)
    start_all(sender)
    receiver.wait_for(AT_ONCE_TO_HOST)
    webhook_id = end_job(store, "t0", receiver.url)
    copied(store, webhook_id, 2_000)
    claims = []

    def count_claims() -> int:
        while sender.start_next() == 0:
            claims.append(clock.monotonic())
            assert len(claims) < 100
        return len(claims)

    # One is sent, the second one is put off, and none is claimed until half a second has passed.
    assert count_claims() == 2
    assert count_claims() == 2
    for passed in range(1, 5):
        clock.advance(0.5)
        assert count_claims() == 2 + passed
    receiver.wait_for(AT_ONCE_TO_HOST + 1)
    assert tries(store) == {b"0"}


def test_a_silent_name_server_of_one_tenant_holds_up_no_other_and_no_try_of_its_own_is_counted(
    store, sender, clock, receiver, name_server
):
    receiver.may_answer.set()
    for _ in range(3 * AT_ONCE_OF_TENANT):
        end_job(store, "t0", f"http://silent.example:{receiver.port}/")
    wait_for(lambda: start_all(sender)["t0"] == NAMES_OF_TENANT, "the last one to be put off")
    for tenant in TENANTS[1:]:
        end_job(store, tenant, receiver.url)
    wait_for(lambda: start_all(sender).total() == NAMES_OF_TENANT, "all others to be told")
    assert len(receiver.received) == len(TENANTS) - 1
    assert tries(store) == {b"0"}
    assert store.client.hget(keys.stats(), "webhooks|not_resolved") is None
    name_server.set()
    finish(store, sender, clock, receiver)
    # One that is still being sent when its lease ends is sent again: the clock of the store advances with each look.
    told = {got.id for got in receiver.received}
    assert len(told) == 3 * AT_ONCE_OF_TENANT + len(TENANTS) - 1
    assert store.client.hget(keys.stats(), "webhooks|delivered") == str(len(told)).encode()


def test_a_fault_of_the_door_is_a_failed_try_that_waits_and_is_not_logged_each_time(
    store, sender, clock, monkeypatch, capsys
):
    log.configure()
    hold_clock(store)
    for name, event in (("_FAULT", "webhook.fault"), ("_FAILED", "webhook.failed")):
        monkeypatch.setattr(sending, name, log.LimitedEvent(event, monotonic=clock.monotonic))

    def broken(*_: object, **__: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(sending, "event_body", broken)
    for _ in range(3):
        end_job(store, "t0", "https://h0.example/")
        claimed = sender.claim()
        assert isinstance(claimed, ClaimedWebhook)
        assert sender.send(claimed) is WebhookResult.FAULT
    assert tries(store) == {b"1"}
    assert store.client.hget(keys.stats(), "webhooks|fault") == b"3"
    wait_ms = sender.claim()
    assert isinstance(wait_ms, int)
    assert wait_ms >= FIRST_REST_MS // 4
    clock.advance(2)
    end_job(store, "t0", "https://h0.example/")
    sending_again = sender.claim()
    assert isinstance(sending_again, ClaimedWebhook)
    sender.send(sending_again)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    counts = [(line["event"], line["left_out"]) for line in lines if line["event"].startswith("webhook.")]
    assert counts == [(name, left) for left in (0, 2) for name in ("webhook.fault", "webhook.failed")]
    assert "ZeroDivisionError" in lines[0]["exception"]


def test_a_process_has_a_bound_for_all_and_the_tenants_beyond_it_come_first_afterwards(store, sender, clock, receiver):
    for number, tenant in enumerate(TENANTS):
        for _ in range(AT_ONCE_OF_TENANT):
            end_job(store, tenant, f"http://{HOSTS[number % len(HOSTS)]}:{receiver.port}/")
    opened = start_all(sender)
    assert opened.total() == AT_ONCE
    assert max(opened.values()) <= AT_ONCE_OF_TENANT
    # No tenant has a second turn before each has had its first.
    assert set(opened) == set(TENANTS)
    finish(store, sender, clock, receiver)


def test_a_webhook_that_was_claimed_elsewhere_meanwhile_is_sent_but_not_counted_twice(store, sender, clock, receiver):
    receiver.may_answer.set()
    end_job(store, "t0", receiver.url)
    slow = sender.claim()
    advance_clock(store, 60_000)
    fast = sender.claim()
    assert isinstance(slow, ClaimedWebhook)
    assert isinstance(fast, ClaimedWebhook)
    sender.send(slow)
    sender.send(fast)
    assert [got.id for got in receiver.received] == [f"msg_{slow.id}"] * 2
    assert store.client.hget(keys.stats(), "webhooks|delivered") == b"1"

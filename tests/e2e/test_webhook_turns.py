"""How many webhooks one process sends at once: of one tenant, to one host and in all; and whose turn it is."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from shared.accounts.webhook_secrets import WebhookSecrets
from shared.clock import RealClock
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from shared.store.webhooks.webhooks import ClaimedWebhook
from tests.support.builders import a_job, admitted, advance_clock, heartbeat
from tests.support.processes import wait_for
from tests.support.receiver import SECRET, Receiver
from web.operations.webhooks.sender import AT_ONCE, AT_ONCE_OF_TENANT, AT_ONCE_TO_HOST, LONGEST_REST_MS, WebhookSender
from web.runtime.context import make_door_context

TENANTS = tuple(f"t{number}" for number in range(20))
HOSTS = tuple(f"h{number}.example" for number in range(6))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        receiver.may_answer.clear()
        yield receiver


@pytest.fixture
def sender(store: Store, settings: Settings) -> WebhookSender:
    for tenant in TENANTS:
        WebhookSecrets(store.client).change(tenant, SECRET)
    heartbeat(store)
    context = make_door_context(replace(settings, webhook_hosts=",".join(("localhost", *HOSTS))), store, RealClock())
    return WebhookSender(context, resolve=lambda _host, _port: ["127.0.0.1"])


def end_job(store: Store, tenant: str, url: str) -> None:
    store.cancel(admitted(store, a_job(tenant, callback_url=url)))


def start_all(sender: WebhookSender) -> Counter[str]:
    """Start as many tries as the process may; return how many of each tenant are open."""
    while sender.start_next() == 0:
        continue
    return sender.open_by_tenant()


def finish(store: Store, sender: WebhookSender, receiver: Receiver) -> None:
    """Let the receiver answer, and send the rest."""
    receiver.may_answer.set()

    def is_done() -> bool:
        advance_clock(store, LONGEST_REST_MS // 10)
        start_all(sender)
        return not store.client.keys(keys.webhook("*")) and not sender.open_by_tenant()

    wait_for(is_done, "all webhooks to be told", timeout_s=60)


def test_one_tenant_takes_its_part_of_the_connections_however_many_webhooks_it_has(store, sender, receiver):
    for _ in range(3 * AT_ONCE_OF_TENANT):
        end_job(store, "t0", receiver.url)
    end_job(store, "t1", receiver.url)
    assert start_all(sender) == {"t0": AT_ONCE_OF_TENANT, "t1": 1}
    receiver.wait_for(AT_ONCE_OF_TENANT + 1)
    finish(store, sender, receiver)
    assert len({got.id for got in receiver.received}) == 3 * AT_ONCE_OF_TENANT + 1


def test_one_host_gets_its_part_of_the_connections_and_the_others_wait_without_a_try(store, sender, receiver):
    for tenant in TENANTS[:AT_ONCE_TO_HOST]:
        for _ in range(2):
            end_job(store, tenant, receiver.url)
    start_all(sender)
    receiver.wait_for(AT_ONCE_TO_HOST)
    wait_for(lambda: sender.open_by_tenant().total() == AT_ONCE_TO_HOST, "the others to be put off")
    assert len(receiver.received) == AT_ONCE_TO_HOST
    assert {store.client.hget(key, "tries") for key in store.client.keys(keys.webhook("*"))} == {b"0"}
    finish(store, sender, receiver)


def test_a_process_has_a_bound_for_all_and_the_tenants_beyond_it_come_first_afterwards(store, sender, receiver):
    for number, tenant in enumerate(TENANTS):
        for _ in range(AT_ONCE_OF_TENANT):
            end_job(store, tenant, f"http://{HOSTS[number % len(HOSTS)]}:{receiver.port}/")
    opened = start_all(sender)
    assert opened.total() == AT_ONCE
    assert max(opened.values()) <= AT_ONCE_OF_TENANT
    # No tenant has a second turn before each has had its first.
    assert set(opened) == set(TENANTS)
    finish(store, sender, receiver)


def test_a_webhook_that_was_claimed_elsewhere_meanwhile_is_sent_but_not_counted_twice(store, sender, receiver):
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

"""Every end is told at least once, wherever doors and workers are killed, and nothing is told to a private address."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.accounts.webhook_secrets import WebhookSecrets
from shared.clock import RealClock
from shared.jobs.outcomes import Outcome
from shared.store import keys
from shared.store.store import Store
from shared.store.webhooks import ClaimedWebhook
from tests.support.builders import a_job, admitted, advance_clock, an_ending, claim, heartbeat, hold_clock, pass_time
from tests.support.mortal import Killed, Mortal
from tests.support.ports import free_port
from tests.support.processes import Stage, wait_for
from tests.support.receiver import SECRET, Receiver
from tests.support.served import SIM
from web.runtime.context import DoorContext
from web.webhooks.sender import LEASE_MS, LONGEST_REST_MS, WebhookSender

PUBLIC = "8.8.8.8"


@pytest.fixture
def context(store: Store, settings: Any) -> DoorContext:
    WebhookSecrets(store.client).change("blue", SECRET)
    return DoorContext(replace(settings, webhook_hosts="localhost"), store, RealClock())


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def work(store: Store, worker: str) -> None:
    """Let a worker run two jobs; one of them fails."""
    heartbeat(store, worker)
    for i, job in enumerate(claim(store, worker, room=2)):
        outcome = Outcome.FAILED if i else Outcome.SUCCEEDED
        store.settle(an_ending(job.held, outcome, code="engine_error" if i else ""), worker)


def send_all(sender: WebhookSender) -> int:
    """Send what is due; return how many were sent."""
    sent = 0
    while isinstance(found := sender.claim(), ClaimedWebhook):
        sender.send(found)
        sent += 1
    return sent


def run_until_killed(act: Callable[[], object], mortal: Mortal, kill_before: int) -> bool:
    """Return whether the process was killed before it had done what it does."""
    mortal.commands_left = kill_before
    try:
        act()
    except Killed:
        return True
    finally:
        mortal.commands_left = None
    return False


def test_each_end_is_told_wherever_the_worker_and_the_first_door_are_killed(context, mortal, receiver):
    store, kill_before, was_killed = context.store, 0, True
    while was_killed:
        receiver.received.clear()
        store.client.flushall()
        # Only the test moves the store's time: after a pause of this process, no lease would end for a while.
        hold_clock(store)
        store.configure(context.settings)
        WebhookSecrets(store.client).change("blue", SECRET)
        heartbeat(store)
        ids = [admitted(store, a_job(callback_url=receiver.url)) for _ in range(4)]
        store.cancel(ids[3])

        def live() -> None:
            work(store, "w1")
            # One try fails, and the receiver has come back for the next one.
            receiver.statuses = [503]
            send_all(WebhookSender(context))

        was_killed = run_until_killed(live, mortal, kill_before)
        receiver.statuses = []
        # The jobs of a killed worker go back to their queue, and another worker runs them.
        pass_time(store, 2 * context.settings.lease_ms, beating="w2")
        store.reap()
        for _ in range(2):
            work(store, "w2")
        survivor = WebhookSender(context)
        for _ in range(3):
            # The claim of the killed door ends, and the rest after one failed try.
            advance_clock(store, LEASE_MS)
            heartbeat(store)
            send_all(survivor)
        told = {got.id for got in receiver.received}
        assert told == {f"msg_{job_id}" for job_id in ids}, f"killed before command {kill_before}"
        assert not store.client.keys(keys.webhook("*"))
        kill_before += 1
    assert kill_before > 10


def test_a_name_that_becomes_private_after_it_was_public_is_never_connected_to(context, receiver, monkeypatch):
    store, answers, connected = context.store, [[PUBLIC], ["127.0.0.1"], ["::ffff:127.0.0.1"]], []

    def note(address: tuple[str, int], timeout: float) -> Any:
        connected.append(address)
        raise OSError

    monkeypatch.setattr("socket.create_connection", note)
    sender = WebhookSender(context, resolve=lambda _host, _port: answers.pop(0))
    heartbeat(store)
    job_id = admitted(store, a_job(callback_url="https://rebinding.example/"))
    store.cancel(job_id)
    for tries in range(1, 4):
        assert send_all(sender) == 1
        assert store.client.hget(keys.webhook(job_id), "tries") == str(tries).encode()
        advance_clock(store, LONGEST_REST_MS)
    assert connected == [(PUBLIC, 443)]
    assert store.client.hget(keys.stats(), "webhooks|refused_address") == b"2"
    assert receiver.received == []


def test_a_host_that_an_operator_removes_from_the_list_is_sent_nothing(context, receiver):
    store = context.store
    heartbeat(store)
    store.cancel(admitted(store, a_job(callback_url=receiver.url)))
    context.settings = replace(context.settings, webhook_hosts="")
    send_all(WebhookSender(context))
    assert receiver.received == []
    assert store.client.hget(keys.stats(), "webhooks|refused_url") == b"1"


def test_without_a_secret_a_webhook_waits_and_is_told_when_there_is_one_again(context, receiver):
    store, sender = context.store, WebhookSender(context)
    heartbeat(store)
    store.cancel(admitted(store, a_job(callback_url=receiver.url)))
    WebhookSecrets(store.client).change("blue", "")
    send_all(sender)
    assert receiver.received == []
    WebhookSecrets(store.client).change("blue", SECRET)
    advance_clock(store, LONGEST_REST_MS)
    send_all(sender)
    assert len(receiver.received) == 1


@pytest.mark.timeout(600)
def test_doors_and_workers_that_are_killed_while_receivers_are_told_leave_no_end_untold(tmp_path: Path) -> None:
    environ = SIM | {"PENSTOCK_WEBHOOK_HOSTS": "localhost", "PENSTOCK_LEASE_MS": "2000", "PENSTOCK_MAX_ATTEMPTS": "20"}
    moments, ids = random.Random(7), []
    with Stage(tmp_path, **environ) as stage, Receiver() as hook:
        WebhookSecrets(stage.client).change("blue", SECRET)
        for _ in range(3):
            worker, door = stage.worker(), stage.web(free_port(), PENSTOCK_WEB_WORKERS="1")
            # The receiver leaves some tries without an answer, and fails others.
            hook.may_answer.clear()
            hook.statuses = [moments.choice((204, 500)) for _ in range(4)]
            ids += [stage.admit(callback_url=hook.url, max_tokens=moments.randrange(2, 60)) for _ in range(12)]
            hook.wait_for(len(hook.received) + moments.randrange(1, 4))
            if moments.random() < 0.5:
                hook.may_answer.set()
            for process in moments.sample([worker, door], 2):
                process.kill()
            hook.may_answer.set()
            # The claims of the killed door end by the store's clock.
            stage.client.incrby(keys.clock(), LEASE_MS)
        stage.worker()
        stage.web(free_port())
        wait_for(lambda: not stage.inflight(), "all jobs to end", timeout_s=60)
        stage.client.incrby(keys.clock(), LEASE_MS)
        wait_for(lambda: not stage.client.keys(keys.webhook("*")), "all webhooks to be told", timeout_s=90)
        assert {got.id for got in hook.received} == {f"msg_{job_id}" for job_id in ids}
        stage.assert_sound()

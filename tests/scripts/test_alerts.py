"""Alerts of doors in one process: who sends, what is found, and what a receiver gets when senders end."""

from dataclasses import replace

import pytest

from shared.accounts.tenants import Tenants
from shared.alerts.conditions import FEWEST_REQUESTS, Condition
from shared.alerts.findings import Finder, promises, refusals
from shared.alerts.stored import StoredAlerts
from shared.history.stored import StoredHistory
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from tests.support.alerts import a_machine, dead_model, receiver, told
from tests.support.builders import MODEL, a_job, admitted, advance_clock, heartbeat
from tests.support.door import door_store
from tests.support.receiver import SECRET

__all__ = ["receiver"]


def test_many_doors_send_one_alert_and_its_end_once(store, settings, receiver, tmp_path):
    doors = [a_machine(store, settings, receiver, tmp_path / str(i)) for i in range(4)]
    dead_model(store)
    for _ in range(3):
        for door in doors:
            door.one_pass()
    assert told(receiver) == [("firing", "model_not_served")]
    assert receiver.received[0].is_signed_with(SECRET)
    heartbeat(store)
    for _ in range(3):
        for door in doors:
            door.one_pass()
        advance_clock(store, 1)
        heartbeat(store)
    assert told(receiver) == [("firing", "model_not_served"), ("resolved", "model_not_served")]


def test_a_failed_message_is_sent_again_later_and_doctor_can_say_so(store, settings, receiver, tmp_path):
    door = a_machine(store, settings, receiver, tmp_path / "a")
    dead_model(store)
    receiver.statuses = [500]
    door.one_pass()
    assert '"tries":1' in StoredAlerts(store.client).read()
    door.one_pass()
    assert len(receiver.received) == 1
    advance_clock(store, 5_000)
    door.one_pass()
    first, second = receiver.received
    assert first.id == second.id
    assert '"tries":0' in StoredAlerts(store.client).read()


def test_a_store_that_is_away_is_told_once_by_each_machine_and_so_is_its_return(store, settings, receiver, tmp_path):
    away = door_store(f"unix://{tmp_path}/missing.sock")
    # Two processes of one machine share a folder.
    one, other = (a_machine(away, settings, receiver, tmp_path / "a") for _ in range(2))
    for _ in range(3):
        one.one_pass()
        other.one_pass()
    assert told(receiver) == [("firing", "store_away")]
    assert "cannot be reached" in receiver.received[0].event["data"]["conditions"][0]["text"]
    # The process ends; the other one knows what was told.
    one._machine.close()
    other._stored = StoredAlerts(store.client)
    other._finder = Finder(store, settings)
    for _ in range(3):
        other.one_pass()
    assert told(receiver) == [("firing", "store_away"), ("resolved", "store_away")]


def test_a_folder_that_cannot_be_used_does_not_stop_the_alert(settings, receiver, tmp_path):
    away = door_store(f"unix://{tmp_path}/missing.sock")
    door = a_machine(away, settings, receiver, tmp_path / "a")
    (tmp_path / "a" / "alerts.json").mkdir()
    for _ in range(2):
        door.one_pass()
    assert told(receiver) == [("firing", "store_away")]


def test_a_full_memory_is_told(store, settings, receiver, tmp_path, memory_is_full):
    door = a_machine(store, settings, receiver, tmp_path / "a")
    with memory_is_full():
        door.one_pass()
        assert ("firing", "store_refuses_writes") in told(receiver)


def test_a_test_message_is_sent_once_and_its_result_is_stored(store, settings, receiver, tmp_path):
    doors = [a_machine(store, settings, receiver, tmp_path / str(i)) for i in range(2)]
    stored = StoredAlerts(store.client)
    stored.ask_for_test("t1")
    assert stored.result_of_test("t1") is None
    for _ in range(2):
        for door in doors:
            door.one_pass()
    assert stored.result_of_test("t1") == "delivered"
    assert [got.event["type"] for got in receiver.received] == ["alert.test"]


def test_a_used_budget_is_found_once_a_minute(store, settings):
    heartbeat(store)
    Tenants(store.client).set("blue", TenantPolicy(tokens_per_day=1_000_000))
    admitted(store, a_job())
    Tenants(store.client).set("blue", TenantPolicy(tokens_per_day=1))
    finder = Finder(store, settings)
    found = finder.find([], 0)
    assert [one.subject for one in found.findings if one.condition is Condition.BUDGET] == ["tenant blue, day"]
    # In between nothing is known of budgets.
    assert Condition.BUDGET in finder.find([], 0).unknown


def test_refusals_of_most_requests_are_found(store, settings):
    heartbeat(store)
    Tenants(store.client).set("blue", TenantPolicy(max_waiting=1))
    for _ in range(FEWEST_REQUESTS):
        store.admit(a_job())
    advance_clock(store, 11_000)
    StoredHistory(store.client).write_point(settings.history_bytes)
    (found,) = refusals(store.client, settings)
    assert found.text == "95 % of the 20 requests of the last ten minutes were refused, most with tenant_queue_full"
    assert list(refusals(store.client, replace(settings, alert_refusals_percent=96))) == []


def test_broken_promises_are_found_if_they_are_more_than_three_in_a_hundred():
    samples: list[tuple[int, int, int]] = []
    stats = {f"promises|blue|{MODEL}|kept": 1_000, f"promises|blue|{MODEL}|broken": 500}
    assert list(promises(samples, stats, 0)) == []
    later = {f"promises|blue|{MODEL}|kept": 1_097, f"promises|blue|{MODEL}|broken": 503}
    assert list(promises(samples, later, 60_000)) == []
    worse = later | {f"promises|blue|{MODEL}|broken": 504}
    assert [one.condition for one in promises(samples, worse, 60_001)] == [Condition.PROMISES]
    # Promises that were broken a quarter of an hour ago do not count.
    assert list(promises(samples, worse, 1_000_000)) == []


@pytest.mark.parametrize("spoiled", ["a list", "fields"])
def test_a_record_that_another_program_has_spoiled_heals(store, settings, receiver, tmp_path, spoiled):
    if spoiled == "a list":
        store.client.rpush(keys.alerts(), "odd")
    else:
        store.client.hset(keys.alerts(), mapping={"asker": "x", "until_ms": "9" * 40, "state": "{", "test": ""})
    dead_model(store)
    a_machine(store, settings, receiver, tmp_path / "a").one_pass()
    assert told(receiver) == [("firing", "model_not_served")]

"""Every alert is told wherever the door that sends it is killed, and told twice only if it was killed in between."""

from shared.store import keys
from tests.support.alerts import a_machine, dead_model, receiver
from tests.support.builders import advance_clock, hold_clock
from tests.support.mortal import Killed, Mortal
from web.webhooks.alerter import LEASE_MS

__all__ = ["receiver"]


def test_an_alert_is_told_wherever_its_sender_is_killed_and_not_twice_within_its_interval(
    store, settings, receiver, tmp_path, mortal: Mortal
):
    hold_clock(store)
    dead_model(store)
    kill_before, was_killed = 0, True
    while was_killed:
        receiver.received.clear()
        store.client.delete(keys.alerts())
        first = a_machine(store, settings, receiver, tmp_path / f"a{kill_before}")
        second = a_machine(store, settings, receiver, tmp_path / f"b{kill_before}")
        mortal.commands_left = kill_before
        try:
            first.one_pass()
            was_killed = False
        except Killed:
            was_killed = True
        mortal.commands_left = None
        second.one_pass()
        advance_clock(store, LEASE_MS)
        for _ in range(3):
            second.one_pass()
        # A sender that was killed after it had sent, and before it could say so, is the only cause of a second try.
        assert 1 <= len(receiver.received) <= 2
        assert len({got.id for got in receiver.received}) == 1
        kill_before += 1
    assert len(receiver.received) == 1
    assert kill_before > 10

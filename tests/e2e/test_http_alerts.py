"""Alerts of served doors: an operator's receiver is told of a dead worker and of a store that is away."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from shared.store.embedded import EmbeddedStore
from tests.support.builders import advance_clock
from tests.support.ports import free_port
from tests.support.processes import Process, Stage, wait_for
from tests.support.program import program
from tests.support.receiver import SECRET, Receiver
from tests.support.served import SIM
from web.webhooks.alerter import LEASE_MS

pytestmark = pytest.mark.ways("direct", reason="no proxy is between the door and the receiver of alerts")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(host="127.0.0.1") as receiver:
        yield receiver


@pytest.fixture
def stage(tmp_path: Path, receiver: Receiver) -> Iterator[Stage]:
    alerts = {"ALERT_URL": receiver.url, "ALERT_FORMAT": "standard", "ALERT_SECRET": SECRET, "ALERT_FOR_S": "0"}
    with Stage(tmp_path, **SIM, **{f"PENSTOCK_{name}": value for name, value in alerts.items()}) as stage:
        yield stage


def a_door(stage: Stage, machine: str = "") -> Process:
    """Start a door of two processes; one of another machine has another state folder."""
    other = {"PENSTOCK_STATE_DIR": str(stage.folder(machine))} if machine else {}
    return stage.web(free_port(), PENSTOCK_AUTH="open", **other)


def conditions(receiver: Receiver) -> list[tuple[str, str]]:
    return [(one["status"], one["condition"]) for got in receiver.received for one in got.event["data"]["conditions"]]


def wait_until_told(receiver: Receiver, expected: list[tuple[str, str]]) -> None:
    wait_for(lambda: len(conditions(receiver)) >= len(expected), f"{expected} to be told", timeout_s=120)
    assert sorted(conditions(receiver)) == sorted(expected)


def verified(receiver: Receiver) -> list[Any]:
    """Check each signature with the code of another package; return the types of the events."""
    client = OpenAI(api_key="none", base_url="http://127.0.0.1:1")
    for got in receiver.received:
        client.webhooks.verify_signature(got.body, got.headers, secret=SECRET)
    return [got.event["type"] for got in receiver.received]


def test_a_test_message_and_a_dead_worker_are_told_once_by_two_doors_and_again_by_no_survivor(
    stage: Stage, receiver: Receiver, tmp_path: Path
) -> None:
    worker = stage.worker()
    doors = [a_door(stage), a_door(stage, "other")]
    penstock = program(tmp_path, REDIS_URL=stage.url)
    done = penstock("alerts", "test")
    assert (done.returncode, done.stderr) == (0, "the test message was delivered\n")
    assert verified(receiver) == ["alert.test"]
    receiver.received.clear()
    worker.pause()
    stage.admit(deadline_ms=3_000_000, model="sim")
    # The worker's heartbeats are old now.
    advance_clock(stage.store, LEASE_MS)
    wait_until_told(receiver, [("firing", "model_not_served")])
    told = json.loads(penstock("alerts", "list", "--json").stdout)
    assert [one["condition"] for one in told["data"]] == ["model_not_served"]
    # One door ends, whether it sent the alert or not; the end is told by the other one.
    doors[0].kill()
    advance_clock(stage.store, LEASE_MS)
    worker.resume()
    wait_until_told(receiver, [("firing", "model_not_served"), ("resolved", "model_not_served")])
    assert verified(receiver) == ["alert.firing", "alert.resolved"]
    for log in (door.log.read_text() for door in doors):
        assert "hook?from" not in log
        assert SECRET not in log


# tests/scripts/test_alerts.py does the same with doors in the test's process.
@pytest.mark.long
def test_a_store_that_is_away_is_told_once_and_so_is_its_return(
    stage: Stage, receiver: Receiver, tmp_path: Path
) -> None:
    a_door(stage)
    wait_for(lambda: stage.client.exists("penstock:alerts"), "a process to look after the alerts", timeout_s=60)
    stage.embedded.stop(grace_s=0.0)
    wait_until_told(receiver, [("firing", "store_away")])
    stage.embedded = EmbeddedStore.start(tmp_path / "state")
    wait_until_told(receiver, [("firing", "store_away"), ("resolved", "store_away")])
    assert verified(receiver) == ["alert.firing", "alert.resolved"]

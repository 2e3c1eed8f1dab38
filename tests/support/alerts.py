"""Doors of several machines that send alerts, in the test's own process."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.clock import RealClock
from shared.settings.settings import Settings
from shared.store.store import Store
from tests.support.builders import a_job, admitted, advance_clock, heartbeat
from tests.support.receiver import SECRET, Receiver
from web.runtime.context import DoorContext
from web.webhooks.alerter import Alerter


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(host="127.0.0.1") as receiver:
        yield receiver


def a_machine(store: Store, settings: Settings, receiver: Receiver, folder: Path, **overrides: Any) -> Alerter:
    """Return the alerter of a door whose machine has this state folder."""
    folder.mkdir(exist_ok=True)
    given: dict[str, Any] = {"alert_url": receiver.url, "alert_format": "standard", "alert_secret": SECRET}
    given |= {"alert_for_s": 0, "state_dir": str(folder)} | overrides
    return Alerter(DoorContext(replace(settings, **given), store, RealClock()))


def dead_model(store: Store) -> None:
    """Let a job wait for a model whose worker has died."""
    heartbeat(store)
    admitted(store, a_job(deadline_ms=3_600_000))
    advance_clock(store, 120_000)


def told(receiver: Receiver) -> list[tuple[str, str]]:
    """Return the status and the name of each condition that the receiver was told."""
    return [(one["status"], one["condition"]) for got in receiver.received for one in got.event["data"]["conditions"]]

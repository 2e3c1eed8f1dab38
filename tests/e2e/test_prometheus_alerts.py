"""The alerts on a real Prometheus: none fires while all is well, and each fires because of a fault of a real system."""

import os
from pathlib import Path

import pytest

from tests.support.boards.of_rules import rules
from tests.support.boards.situations import SITUATIONS, WITHOUT_SITUATION, Situation
from tests.support.boards.watched import Watched, watched
from tests.support.processes import wait_for
from tests.support.prometheus import needs_prometheus

pytestmark = [
    needs_prometheus,
    # Each situation lasts until its alerts fire, and a busy machine needs several times as long.
    pytest.mark.timeout(900),
    pytest.mark.ways("direct", reason="the tests are about what Prometheus reads from the door"),
]


def test_every_alert_has_a_situation_or_a_reason() -> None:
    caused = [alert for situation in SITUATIONS for alert in situation.alerts]
    assert sorted([*caused, *WITHOUT_SITUATION]) == sorted(rules("alerts.yml"))


def cause(it: Watched, situation: Situation, before: set[str]) -> None:
    """Let a situation last until its alerts fire. No other alert may fire."""
    with situation.lasts(it):
        missing = set(situation.alerts)

        def all_fired() -> bool:
            for alert in missing:
                situation.alerts[alert](it)
            missing.difference_update(it.fired())
            return not missing

        try:
            wait_for(all_fired, situation.name, timeout_s=120)
        except AssertionError:
            assert (situation.name, missing) == (situation.name, set())
    assert it.fired() - it.told_of_this_machine() <= before | set(situation.alerts), situation.name


@pytest.mark.skipif(not os.environ.get("TEST_ALERTS"), reason="takes two minutes; `make test-alerts` runs it")
def test_no_alert_fires_while_all_is_well_and_each_fires_in_its_situation(tmp_path: Path) -> None:
    with watched(tmp_path) as it:
        it.be_calm()
        assert it.fired() <= it.told_of_this_machine()
        before: set[str] = set()
        for situation in SITUATIONS:
            cause(it, situation, before)
            before |= set(situation.alerts)
        it.stage.assert_sound()

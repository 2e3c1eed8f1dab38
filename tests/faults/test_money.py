"""Tests that all ledgers agree with each other and with the upstream's, whatever the upstream sends."""

from pathlib import Path

import pytest

from tests.money.run import Plan, run


@pytest.mark.parametrize("kills", [False, True], ids=["whole", "kills"])
def test_what_is_charged_is_what_the_upstream_has_written(tmp_path: Path, kills: bool) -> None:
    verdict = run(Plan(seed=5 + kills, requests=30, kills=kills, trouble=0.25), tmp_path)
    assert verdict.figures["requests"] >= 30
    assert verdict.anomalies == []

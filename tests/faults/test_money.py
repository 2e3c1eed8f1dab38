"""Tests that all ledgers agree with each other and with the upstream's, whatever the upstream sends."""

from pathlib import Path

import pytest

from tests.money.run import Plan, run


@pytest.mark.parametrize(("kills", "requests"), [(False, 160), (True, 40)], ids=["whole", "kills"])
def test_what_is_charged_is_what_the_upstream_has_written(tmp_path: Path, kills: bool, requests: int) -> None:
    verdict = run(Plan(seed=5 + kills, requests=requests, kills=kills, trouble=0.15), tmp_path)
    assert verdict.figures["requests"] >= requests
    assert verdict.anomalies == []

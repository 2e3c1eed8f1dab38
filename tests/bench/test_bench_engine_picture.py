"""Tests that the engine's figures can be drawn, also those of loads with default sampling."""

import pytest

pytest.importorskip("matplotlib", reason="needs the packages of the group bench")

from bench.engine_models import Load
from bench.engine_picture import draw


def test_loads_with_and_without_default_sampling_are_drawn(tmp_path):
    cells = {
        Load(clients, 64, 32, 2, sampled=sampled).name: {"tokens_per_s": {"a": 10.0, "b": 9.0}}
        for clients, sampled in ((1, False), (16, False), (16, True))
    }
    draw({"small": {"cells": cells}}, tmp_path / "engine.png")
    assert (tmp_path / "engine.png").stat().st_size > 10_000

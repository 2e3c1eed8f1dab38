"""Tests the pictures of the overload experiments: stored results are read back, and systems have names."""

import gzip
import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="needs the packages of the group bench")

from bench.overload import draw_again
from bench.sim.report import COLOURS, NAMES, results_of


def test_stored_results_have_the_keys_that_the_experiments_gave_them():
    stored = {"E1": {"ours 10.0": {"useful": 1}}, "E5": {"B3 half dark": {}}, "E6": {"B4 layered 0.5": {}}}
    assert results_of(stored) == {
        "E1": {("ours", 10.0): {"useful": 1}},
        "E5": {("B3", "half dark"): {}},
        "E6": {("B4", "layered", 0.5): {}},
    }


def test_experiments_without_a_picture_are_left_out():
    assert results_of({"E2": {"random 0": {}}, "E8": {"": {}}}) == {}


def test_every_system_has_a_name_that_a_reader_understands():
    assert set(NAMES) == set(COLOURS)
    assert all(len(name) > 3 for name in NAMES.values())


def test_the_pictures_of_an_earlier_result_are_drawn_again(tmp_path: Path):
    quiet = {"ttft_p99_ms": 100.0}
    figures = {"11": {"results": {"E3": {"ours 0": quiet, "ours 20": quiet, "B4 0": quiet, "B4 20": quiet}}}}
    path = tmp_path / "2026-11-21-overload.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"figures": figures}).encode()))
    draw_again(path)
    assert (tmp_path / "2026-11-21-overload-seed11.png").read_bytes().startswith(b"\x89PNG")

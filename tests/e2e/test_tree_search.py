"""Tests that the example of a tree search runs against a real door, and computes little of its prompts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.served import random_model_served

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

PROGRAM = Path(__file__).parents[2] / "examples" / "tree_search.py"


@pytest.mark.ways("direct", reason="the example is about jobs, which other files test both ways")
def test_a_tree_search_keeps_the_likeliest_texts_and_reuses_what_it_has_computed(tmp_path: Path) -> None:
    with random_model_served(tmp_path) as served:
        printed = subprocess.run(
            [sys.executable, PROGRAM, "--n", "4", "--width", "2", "--levels", "3", "--tokens", "8"],
            env=os.environ | {"PENSTOCK_URL": served.url},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        ).stdout
        assert served.stage.inflight() == 0
    assert "5 jobs with 4 candidates each" in printed
    found = re.search(r"(\d+) prompt tokens \((\d+) computed\), (\d+) generated tokens", printed)
    assert found is not None
    prompt, computed, generated = map(int, found.groups())
    assert 0 < computed < prompt / 2
    assert 0 < generated <= 5 * 4 * 8
    assert re.search(r'score -\d+\.\d\d: "Once upon a time, a little fox', printed)

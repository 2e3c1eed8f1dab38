"""Tests of the GPU benchmark on machines without a GPU: it reports that, and it continues where it ended."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from llama_cpp import _ggml, llama_cpp

from bench.gpu import kept_results
from workers.demo.random_gguf import write_random_model
from workers.engine.llama.devices import gpus

llama_cpp.llama_backend_init()


def run(*options):
    command = [sys.executable, "-m", "bench", "gpu", *options]
    return subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)


@pytest.mark.skipif(bool(gpus(_ggml.libggml)), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_in_one_sentence_and_fails(tmp_path):
    done = run("--results", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "this build of llama-cpp-python sees no GPU, so nothing can be measured: make install GPU=cuda"
    )
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_it_continues_after_the_parts_that_have_figures(tmp_path):
    model = tmp_path / "model.gguf"
    write_random_model(model)
    common = ("--device", "cpu", "--model", str(model), "--results", str(tmp_path / "results"))
    too_short = run(*common, "--minutes", "0.9")
    assert too_short.returncode == 1
    assert "devices and the parts after it were not begun" in too_short.stderr
    assert run(*common, "--parts", "clock").returncode == 0
    (path,) = (tmp_path / "results").iterdir()
    first = json.loads(path.read_text())
    assert first["begun"] == ["clock"]
    # A run that was ended in the part `devices`.
    path.write_text(json.dumps(first | {"begun": ["clock", "devices"]}))
    second = run(*common, "--parts", "devices,clock,speed_8,answers,cache")
    assert second.returncode == 0, second.stderr
    assert "# clock: kept from an earlier run" in second.stdout
    figures = json.loads(path.read_text())["figures"]
    assert figures["clock"] == first["figures"]["clock"]
    assert set(figures) == {"devices", "clock", "speed_8", "answers", "cache"}
    assert figures["speed_8"]["generated_tps"] > 0
    assert 0 <= figures["speed_8"]["outside_the_model"] < 1
    assert figures["answers"]["compared"] == 16
    order = [line.partition(":")[0] for line in second.stdout.splitlines() if line.partition(":")[0] in figures]
    assert order == ["speed_8", "answers", "cache", "devices"]
    assert kept_results(path, first["environment"]["measured"])[0] == figures
    assert kept_results(path, first["environment"]["measured"] | {"device": "another"}) == ({}, [])

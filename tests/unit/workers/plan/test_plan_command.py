"""Tests of the command line of a plan: its numbers, its table and its exit codes."""

import contextlib
import json
from pathlib import Path

import pytest

from shared.jobs.adapter_list import Adapter
from shared.settings.settings import SETTINGS, load
from tests.support.lora import write_lora
from workers.demo.random_gguf import write_random_model
from workers.engine.llama.backend import load_backend
from workers.plan.__main__ import main, parse_size


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    write_random_model(path, name="small")
    return str(path)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("80GiB", 80 << 30), ("24GB", 24 * 10**9), ("1.5gib", 3 << 29), ("8192MiB", 8 << 30), ("1TB", 10**12)],
)
def test_a_size_is_a_number_with_its_unit(text, size_bytes):
    assert parse_size("--gpu", text) == size_bytes


def test_the_table_has_the_sizes_the_jobs_and_the_settings(model, capsys):
    assert main([model, "--gpu=8GiB", "--users=100", "--prompt=300", "--answer=200", "--rate=2200"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    found = dict(rows)
    assert found["model"] == "small (llama), trained for 2,048 tokens"
    assert found["layers"] == "2 with full attention: 128 bytes for a token in each"
    assert found["KV cells"] == "32 MiB: 131,072 of 256 bytes (f16)"
    assert found["jobs at once"] == "64 of 300 + 200 tokens; the memory holds 262"
    assert found["slots"] == "up to 64 as the worker measures, longest job 2,048 tokens"
    assert found["jobs per second"] == "2"
    assert found["last answer"] == "after 50 s if all 100 users ask at once"
    named = [value for what, value in rows if what == "settings"]
    assert not [line for line in named if line.startswith("PENSTOCK_MAX_BATCH_SIZE")]
    assert "PENSTOCK_MAX_WAIT_MS=18000" in named
    assert "PENSTOCK_MAX_QUEUE_SIZE=128" in named


def test_a_plan_has_the_memory_of_the_adapters_that_a_worker_takes(model, tmp_path, monkeypatch, capsys):
    path = write_lora(tmp_path / "a.gguf", Path(model), seed=1, rank=64)
    monkeypatch.setenv("PENSTOCK_ADAPTERS", f"a={path}")
    assert main([model, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["memory"]["weights_bytes"]
    settings = load({}, None, device="cpu", threads=1)
    with contextlib.closing(load_backend(settings, Path(model), adapters=[Adapter("a", path, "")])) as backend:
        assert planned == pytest.approx(backend.facts.weights_bytes, abs=24_000)
    assert main([model, model + "2", "--json"]) == 2
    assert "is for the plan of one model" in capsys.readouterr().err


def test_an_adapter_of_another_model_has_no_plan(model, tmp_path, monkeypatch, capsys):
    other = tmp_path / "other.gguf"
    write_random_model(other, n_embd=128)
    monkeypatch.setenv("PENSTOCK_ADAPTERS", f"a={write_lora(tmp_path / 'a.gguf', other, seed=1)}")
    assert main([model]) == 1
    assert "PENSTOCK_ADAPTERS: adapter 'a'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--gpu=80"], 2, "--gpu='80' is not a size; write it like 80GiB"),
        (["--gpu=1GiB"], 1, "what is left is too little for 64 slots"),
        (["--users=5"], 2, "name both numbers of tokens"),
        (["--rate=5"], 2, "--rate=5.0: name --prompt and --answer too"),
        (["--slots=5000"], 2, "--slots='5000' is out of range"),
        (["--prompt=9000", "--answer=1"], 1, "a job of 9001 tokens is longer than the longest"),
        (["--slots=300"], 1, "llama.cpp computes 256 sequences at once, fewer than 300 slots"),
        (["--slots=300", "--gpu=80GiB"], 1, "llama.cpp computes 256 sequences at once, fewer than 300 slots"),
        (["--users=0"], 2, "--users: '0' is not a number in 1..10000000"),
        (["--prompt=-1"], 2, "--prompt: '-1' is not a number"),
        (["--rate=nan"], 2, "--rate: 'nan' is not a number of tokens per second"),
        (["--rate=0"], 2, "--rate: '0' is not a number of tokens per second"),
        (["--answer=1e3"], 2, "--answer: '1e3' is not a number"),
        (["--context=10000001"], 2, "--context: '10000001' is not a number in 1..10000000"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(model, capsys, arguments, code, expected):
    assert main([model, *arguments]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


@pytest.mark.parametrize("gpu", [[], ["--gpu=80GiB"]])
def test_too_few_cells_for_the_slots_are_told_as_the_worker_tells_them(model, capsys, monkeypatch, gpu):
    monkeypatch.setenv("PENSTOCK_KV_CELLS", "16")
    assert main([model, "--slots=9", *gpu]) == 1
    assert "16 KV cells are fewer than 2 for each of 9 slots" in capsys.readouterr().err


def test_a_pooling_that_is_set_plans_a_model_that_embeds(model, capsys, monkeypatch):
    monkeypatch.setenv("PENSTOCK_POOLING", "mean")
    assert main([model, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["kv_bytes"] == 0


def test_a_file_without_a_context_length_needs_one(tmp_path, capsys):
    path = tmp_path / "unlimited.gguf"
    write_random_model(path, name="unlimited")
    data = bytearray(path.read_bytes())
    # The value is a 32-bit number behind its key and its type.
    value_at = data.index(b"llama.context_length") + len(b"llama.context_length") + 4
    assert data[value_at : value_at + 4] == (2_048).to_bytes(4, "little")
    data[value_at : value_at + 4] = bytes(4)
    path.write_bytes(data)
    assert main([str(path)]) == 1
    assert "names no context_length (0); give --context" in capsys.readouterr().err
    assert main([str(path), "--context=512"]) == 0


def test_the_longest_context_that_can_be_set_can_be_planned(model, capsys):
    assert main([model, f"--context={SETTINGS['n_ctx'].bounds[1]}", "--slots=1", "--gpu=80GiB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_ctx"] == SETTINGS["n_ctx"].bounds[1]

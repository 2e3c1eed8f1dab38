"""Tests the plan of several workers that share the memory of one machine."""

import json
from dataclasses import replace

import pytest

from shared.settings.settings import load
from workers.demo.random_gguf import write_random_model
from workers.gguf_header import read_local_header
from workers.plan.__main__ import main
from workers.plan.layout import layout_of
from workers.plan.memory import DoesNotFit
from workers.plan.shares import Gpu
from workers.plan.together import plan_in_turn, plan_together

GIB = 1 << 30


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    write_random_model(path, name="small")
    return path


@pytest.fixture(scope="module")
def layout(model):
    return layout_of([read_local_header(model)])


def settings(**changed):
    return replace(load({}, None), engine="llama", **changed)


def test_each_worker_of_a_gpu_has_a_share_into_which_its_cells_fit(layout):
    found = plan_together([("a", layout), ("b", layout), ("b", layout)], settings(), [Gpu(0, 5 * GIB)])
    assert [one.model for one in found] == ["a", "b", "b"]
    assert sum(one.share.share_bytes for one in found) <= 5 * GIB
    for one in found:
        assert one.fit.sum_bytes - one.fit.host_bytes <= one.share.share_bytes
        assert one.fit.sizes.slots == 64


def test_workers_are_planned_for_the_cpu_if_the_device_setting_says_so(layout):
    (one,) = plan_together([("a", layout)], settings(device="cpu"), [Gpu(0, 8 * GIB)])
    assert one.share is None


def test_without_a_gpu_the_workers_must_fit_into_the_memory_and_share_the_weights_of_a_file(layout):
    (alone,) = plan_together([("a", layout)], settings(), [])
    weights, rest = alone.fit.weights_bytes, alone.fit.sum_bytes - alone.fit.weights_bytes
    assert len(plan_together([("a", layout)] * 2, settings(), [], weights + 2 * rest)) == 2
    with pytest.raises(DoesNotFit, match=r"the models take .* GiB \(a .* GiB, b .* GiB\), and this machine has"):
        plan_together([("a", layout), ("b", layout)], settings(), [], weights + 2 * rest)


def test_workers_that_take_turns_must_fit_with_the_largest_models_that_they_may_hold_at_once(layout):
    (alone,) = plan_together([("a", layout)], settings(), [])
    weights, rest = alone.fit.weights_bytes, alone.fit.sum_bytes - alone.fit.weights_bytes
    models = [("a", layout), ("b", layout), ("c", layout)]
    assert len(plan_in_turn(models, settings(), 2, 2 * weights + 2 * rest)) == 3
    with pytest.raises(DoesNotFit, match=r"\(a .* GiB, b .* GiB\), and this machine has"):
        plan_in_turn(models, settings(), 2, 2 * weights + 2 * rest - 1)
    # Two workers may hold the same file, whose weights they share.
    assert plan_in_turn(models[:1], settings(), 2, weights + 2 * rest)
    with pytest.raises(DoesNotFit):
        plan_in_turn(models[:1], settings(), 2, weights + 2 * rest - 1)


def test_a_plan_of_turns_leaves_out_files_that_cannot_be_read(model, capsys, tmp_path):
    (tmp_path / "cut.gguf").write_bytes(model.read_bytes()[: model.stat().st_size // 2])
    assert main([str(model), str(tmp_path / "cut.gguf"), "--here", "--at-once=2", "--json"]) == 0
    written = capsys.readouterr()
    assert [one["model"] for one in json.loads(written.out)] == [str(model)]
    assert "left out: cut.gguf is cut" in written.err
    assert main([f"{model}:2", "--at-once=2"]) == 2


def test_the_table_has_a_row_for_each_worker(model, capsys):
    assert main([str(model), f"chat={model}:2", "--gpu=8GiB"]) == 0
    titles, *rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert titles[:3] == ["worker", "model", "device"]
    assert [row[:3] for row in rows] == [["1", str(model), "GPU 0"], ["2", "chat", "GPU 0"], ["3", "chat", "GPU 0"]]


def test_the_plan_for_this_machine_names_a_device_for_each_worker(model, capsys, monkeypatch):
    monkeypatch.setenv("PENSTOCK_DEVICE", "cpu")
    assert main([f"{model}:2", "--here", "--json"]) == 0
    assert [(one["device"], one["slots"]) for one in json.loads(capsys.readouterr().out)] == [("cpu", 4)] * 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["MODEL", "MODEL", "--users=3"], "--users is for the plan of one model"),
        (["MODEL", "--here", "--gpu=8GiB"], "--here and --gpu=8GiB exclude each other"),
        (["MODEL", "MODEL:0"], ":0' is not [NAME=]MODEL[:N], with at least 1 worker"),
    ],
)
def test_what_contradicts_itself_is_one_sentence(model, capsys, arguments, expected):
    assert main([argument.replace("MODEL", str(model)) for argument in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line

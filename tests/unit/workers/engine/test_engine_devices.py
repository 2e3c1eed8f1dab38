"""PENSTOCK_DEVICE decides where a model goes, and what a machine has unused is said."""

import pytest

from shared.errors import ModelError
from workers.engine.llama.devices import Device, choose, unused_gpu_advice


def _gpus(n: int) -> list[Device]:
    return [Device(100 + i, f"CUDA{i}", "a GPU", 1 << 30, 2 << 30) for i in range(n)]


def test_auto_is_one_gpu_and_workers_are_counted_round():
    seen = _gpus(2)
    assert choose("auto", seen) == [seen[0]]
    assert choose("auto", seen, index=1) == [seen[1]]
    assert choose("auto", seen, index=2) == [seen[0]]


def test_auto_without_a_gpu_is_the_cpu():
    assert choose("auto", []) == []


def test_cpu_is_the_cpu_though_there_are_gpus():
    assert choose("cpu", _gpus(2)) == []


def test_named_devices_come_in_the_order_named():
    seen = _gpus(3)
    assert choose("2,0", seen) == [seen[2], seen[0]]


def test_a_named_device_that_is_not_there_ends_the_start_and_says_what_is():
    with pytest.raises(ModelError, match="0 is CUDA0, 1 is CUDA1"):
        choose("0,2", _gpus(2))
    with pytest.raises(ModelError, match="sees no GPU"):
        choose("0", [])


def test_a_device_named_twice_ends_the_start():
    with pytest.raises(ModelError, match="twice"):
        choose("1,1", _gpus(2))


def test_a_gpu_that_the_build_cannot_use_is_told_with_the_command_that_mends_it(tmp_path):
    driver = tmp_path / "nvidia0"
    assert unused_gpu_advice([], (driver,)) == ""
    driver.touch()
    assert "GGML_CUDA=on" in unused_gpu_advice([], (driver,))
    assert unused_gpu_advice(_gpus(1), (driver,)) == ""

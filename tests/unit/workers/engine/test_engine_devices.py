"""Tests of PENSTOCK_DEVICE, which selects the devices of a model, and of the advice about an unused GPU."""

from dataclasses import replace

import pytest

from shared.errors import ModelError
from workers.engine.llama.devices import Device, choose, unused_gpu_advice


def _gpus(n: int) -> list[Device]:
    return [Device(100 + i, f"CUDA{i}", "a GPU", 1 << 30, 2 << 30) for i in range(n)]


def test_auto_gives_each_worker_one_gpu_in_rotation():
    gpus = _gpus(2)
    assert choose("auto", gpus) == [gpus[0]]
    assert choose("auto", gpus, index=1) == [gpus[1]]
    assert choose("auto", gpus, index=2) == [gpus[0]]


def test_auto_uses_an_integrated_gpu_only_if_there_is_no_other():
    integrated = replace(_gpus(1)[0], name="Vulkan0", integrated=True)
    dedicated = _gpus(2)
    assert [choose("auto", [integrated, *dedicated], index=i)[0].name for i in range(3)] == ["CUDA0", "CUDA1", "CUDA0"]
    assert choose("auto", [integrated], index=3) == [integrated]
    assert choose("0", [integrated, *dedicated]) == [integrated]


def test_auto_without_a_gpu_is_the_cpu():
    assert choose("auto", []) == []


def test_cpu_is_the_cpu_even_if_there_are_gpus():
    assert choose("cpu", _gpus(2)) == []


def test_named_devices_are_used_in_the_order_given():
    gpus = _gpus(3)
    assert choose("2,0", gpus) == [gpus[2], gpus[0]]


def test_a_named_device_that_does_not_exist_is_refused_and_the_error_lists_the_existing_ones():
    with pytest.raises(ModelError, match="0 is CUDA0, 1 is CUDA1"):
        choose("0,2", _gpus(2))
    with pytest.raises(ModelError, match="sees no GPU"):
        choose("0", [])


def test_a_device_named_twice_is_refused():
    with pytest.raises(ModelError, match="twice"):
        choose("1,1", _gpus(2))


def test_the_advice_for_an_unused_gpu_names_the_build_option_that_enables_it(tmp_path):
    driver = tmp_path / "nvidia0"
    assert unused_gpu_advice([], (driver,)) == ""
    driver.touch()
    assert "GGML_CUDA=on" in unused_gpu_advice([], (driver,))
    assert unused_gpu_advice(_gpus(1), (driver,)) == ""

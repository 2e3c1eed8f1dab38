"""Tests how many workers `auto` starts: one for each GPU that the build can use and the environment does not hide."""

import re
import sys
from pathlib import Path

import pytest

from shared.cli.stack import gpus


@pytest.fixture
def count_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Counts the GPUs for an installed llama-cpp-python with these libraries, on a machine with these devices."""

    def count(libraries: list[str], devices: list[str], **environ: str) -> int:
        (tmp_path / "llama_cpp" / "lib").mkdir(parents=True)
        (tmp_path / "llama_cpp" / "__init__.py").write_text("raise AssertionError('it must not be loaded')")
        for library in libraries:
            (tmp_path / "llama_cpp" / "lib" / library).touch()
        dev = tmp_path / "dev"
        dev.mkdir()
        for device in devices:
            (dev / device).touch()
        builds = (
            ("ggml-cuda", "CUDA_VISIBLE_DEVICES", dev, re.compile(r"nvidia\d+")),
            ("ggml-hip", "HIP_VISIBLE_DEVICES", dev, re.compile(r"renderD\d+")),
        )
        monkeypatch.setattr(gpus, "_BUILDS", builds)
        monkeypatch.delitem(sys.modules, "llama_cpp", raising=False)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        return gpus.visible_gpus()

    return count


TWO = ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"]
CUDA = ["libggml-base.so", "libggml-cuda.so"]


def test_a_build_for_cpus_uses_no_gpu_even_if_the_machine_has_some(count_gpus):
    assert count_gpus(["libggml-base.so", "libggml-cpu.so"], TWO) == 0


def test_every_device_of_the_driver_is_counted_and_its_control_files_are_not(count_gpus):
    assert count_gpus(CUDA, TWO) == 2


def test_a_build_for_cuda_on_a_machine_without_a_gpu_sees_none(count_gpus):
    assert count_gpus(CUDA, []) == 0


@pytest.mark.parametrize(
    ("visible", "expected"), [("1", 1), ("0,1", 2), ("", 0), ("-1", 0), ("0,-1,1", 1), ("0,1,2,3", 2)]
)
def test_the_environment_may_hide_devices(count_gpus, visible, expected):
    assert count_gpus(CUDA, TWO, CUDA_VISIBLE_DEVICES=visible) == expected


def test_a_build_for_amd_counts_its_own_devices(count_gpus):
    assert count_gpus(["libggml-hip.so"], ["renderD128", "card0"]) == 1


def test_a_build_for_vulkan_gets_one_worker(count_gpus):
    assert count_gpus(["libggml-vulkan.so"], []) == 1

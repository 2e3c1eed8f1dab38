"""Tests that `make install` names what the build of llama.cpp lacks before it installs anything."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "check_toolchain.sh"
#: The programs that the script and make themselves need; none of them is a compiler.
PROGRAMS = ("bash", "env", "grep", "sed", "test", "cat", "uname", "make", "rm", "mkdir", "touch", "python3")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder, used as the whole PATH, with the programs of a machine without a compiler and without a GPU."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        found = shutil.which(name)
        if found:
            (programs / name).symlink_to(found)
    # This machine may have the libraries that the tests expect to be missing.
    add(programs, "ldconfig")
    return programs


def add(machine: Path, name: str, output: str = "") -> None:
    program = machine / name
    program.write_text(f"#!/usr/bin/env bash\necho '{output}'\n")
    program.chmod(0o755)


def check(machine: Path, gpu: str, cuda: Path) -> tuple[int, str]:
    environ = {"PATH": str(machine), "CUDA_HOME": str(cuda)}
    done = subprocess.run([SCRIPT, gpu], env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_a_missing_compiler_is_named_in_the_error_for_every_kind_of_build(machine, tmp_path):
    for gpu in ("cpu", "cuda", "rocm", "vulkan"):
        code, error = check(machine, gpu, tmp_path)
        assert (code, error.partition(": ")[0]) == (1, f"cannot build llama-cpp-python for {gpu}")
        assert "no C++ compiler" in error


def test_a_missing_c_compiler_and_a_wrong_cxx_are_named(machine, tmp_path):
    add(machine, "c++")
    assert "no C compiler" in check(machine, "cpu", tmp_path)[1]
    add(machine, "cc")
    environ = {"PATH": str(machine), "CXX": "no-such-compiler -O2"}
    done = subprocess.run([SCRIPT, "cpu"], env=environ, capture_output=True, text=True, check=False)
    assert "CXX=no-such-compiler -O2 was not found" in done.stderr


def test_a_compiler_is_enough_for_a_build_for_cpus(machine, tmp_path):
    add(machine, "c++")
    add(machine, "cc")
    assert check(machine, "cpu", tmp_path) == (0, "")


def test_a_build_for_cuda_is_checked_for_nvcc_then_cublas_then_a_visible_gpu(machine, tmp_path):
    add(machine, "g++")
    add(machine, "gcc")
    cuda = tmp_path / "cuda"
    (cuda / "lib64").mkdir(parents=True)
    assert "nvcc was found neither on PATH nor in" in check(machine, "cuda", cuda)[1]
    add(machine, "nvcc")
    assert "cuBLAS (libcublas.so) was not found" in check(machine, "cuda", cuda)[1]
    (cuda / "lib64" / "libcublas.so.13").touch()
    assert "cuBLAS (libcublas.so) was not found" in check(machine, "cuda", cuda)[1]
    (cuda / "lib64" / "libcublas.so").touch()
    assert "nvidia-smi was not found" in check(machine, "cuda", cuda)[1]
    add(machine, "nvidia-smi", "No devices were found")
    assert "nvidia-smi lists no GPU" in check(machine, "cuda", cuda)[1]
    add(machine, "nvidia-smi", "GPU 0: NVIDIA H100 (UUID: GPU-0)")
    assert check(machine, "cuda", cuda) == (0, "")


@pytest.mark.parametrize(("gpu", "program"), [("rocm", "hipcc"), ("vulkan", "glslc")])
def test_builds_for_rocm_and_vulkan_need_their_own_compiler(machine, tmp_path, gpu, program):
    add(machine, "c++")
    add(machine, "cc")
    assert program in check(machine, gpu, tmp_path)[1]
    add(machine, program)
    assert check(machine, gpu, tmp_path)[0] == 0


@pytest.mark.parametrize("gpu", ["cpu", "cuda"])
def test_make_install_stops_before_it_creates_an_environment(machine, tmp_path, gpu):
    environment = tmp_path / "venv"
    done = subprocess.run(
        ["make", "-C", ROOT, "install", f"VENV={environment}", f"GPU={gpu}"],
        env={"PATH": str(machine), "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert f"cannot build llama-cpp-python for {gpu}: no C++ compiler" in done.stderr, done
    assert not environment.exists()

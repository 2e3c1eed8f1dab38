"""Tests that `make install`, before it installs anything, says what it will do and names what the build lacks."""

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
    done = make(machine, "install", f"VENV={environment}", f"GPU={gpu}")
    assert done.returncode != 0
    announced, _, error = done.stderr.partition(f"cannot build llama-cpp-python for {gpu}: no C++ compiler")
    assert f"builds llama.cpp for {gpu}" in announced, done
    assert "GPU=none make up UPSTREAM=" in announced
    assert error
    assert not environment.exists()


def test_without_llama_cpp_no_compiler_is_looked_for_and_only_the_upstreams_lock_file_is_installed(machine, tmp_path):
    environment = tmp_path / "venv"
    done = make(machine, "-n", "up", f"VENV={environment}", "GPU=none", "UPSTREAM=http://127.0.0.1:9/v1", "PORT=8001")
    assert done.returncode == 0, done
    assert "requirements/upstream.txt" in done.stdout
    assert "requirements/worker.txt" not in done.stdout
    assert "requirements/engine.txt" not in done.stdout.replace("-nt requirements/engine.txt", "")
    assert f"exec {environment}/bin/penstock up --upstream 'http://127.0.0.1:9/v1' --port '8001'" in " ".join(
        done.stdout.split()
    )


def test_what_needs_llama_cpp_is_refused_where_it_was_left_out(machine, tmp_path):
    (tmp_path / "venv" / "stamps").mkdir(parents=True)
    (tmp_path / "venv" / "stamps" / "gpu").write_text("none\n")
    done = make(machine, "-n", "test", f"VENV={tmp_path / 'venv'}")
    assert done.returncode != 0
    assert "make test needs llama.cpp, which GPU=none leaves out: name a build, such as GPU=" in done.stderr
    assert make(machine, "-n", "install", f"VENV={tmp_path / 'venv'}").returncode == 0


def test_an_unknown_kind_of_build_is_refused_with_the_known_ones(machine, tmp_path):
    done = make(machine, "install", f"VENV={tmp_path / 'venv'}", "GPU=tpu")
    assert "GPU=tpu is not one of cuda, rocm, vulkan, metal, cpu, none" in done.stderr


def make(machine: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", "-C", ROOT, *arguments],
        env={"PATH": str(machine), "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

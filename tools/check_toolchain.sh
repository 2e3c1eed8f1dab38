#!/usr/bin/env bash
# Checks that this machine can build llama-cpp-python, before anything is installed.
# Usage: check_toolchain.sh cpu|cuda|rocm|vulkan|metal
set -euo pipefail

gpu=${1:?usage: check_toolchain.sh cpu|cuda|rocm|vulkan|metal}

# Prints the error MESSAGE and exits: stop MESSAGE.
stop() {
    printf 'cannot build llama-cpp-python for %s: %s\n' "$gpu" "$1" >&2
    exit 1
}

# Succeeds if at least one of the programs exists.
found() { command -v "$@" >/dev/null; }

# has_library FILE FOLDER…: succeeds if a FOLDER or the linker's cache has a library with exactly this file name.
has_library() {
    local name=$1 folder
    shift
    for folder in "$@"; do
        [ -e "$folder/$name" ] && return 0
    done
    PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null | grep -F "$name (" >/dev/null
}

# CMake uses CXX and CC if they are set, and searches for a compiler only otherwise.
if [ -n "${CXX:-}" ]; then found "${CXX%% *}" || stop "CXX=$CXX was not found"; fi
if [ -n "${CC:-}" ]; then found "${CC%% *}" || stop "CC=$CC was not found"; fi
[ -n "${CXX:-}" ] || found c++ g++ clang++ || stop 'no C++ compiler found; on Debian and Ubuntu: apt install g++'
[ -n "${CC:-}" ] || found cc gcc clang || stop 'no C compiler found; on Debian and Ubuntu: apt install gcc'

case $gpu in
    cuda)
        cuda=${CUDA_HOME:-${CUDA_PATH:-/usr/local/cuda}}
        found nvcc "$cuda/bin/nvcc" || stop \
            "nvcc was found neither on PATH nor in $cuda/bin; install the CUDA toolkit, or set CUDA_HOME to its folder"
        has_library libcublas.so "$cuda/lib64" "$cuda/lib" "$cuda/targets/x86_64-linux/lib" || stop \
            "cuBLAS (libcublas.so) was not found in $cuda; install the cuBLAS development package of your CUDA toolkit"
        found nvidia-smi || stop 'nvidia-smi was not found; install the NVIDIA driver'
        nvidia-smi -L 2>/dev/null | grep '^GPU ' >/dev/null || stop \
            'nvidia-smi lists no GPU; check the driver and, in a container, which devices it may use'
        ;;
    rocm)
        found hipcc "${ROCM_PATH:-/opt/rocm}/bin/hipcc" || stop "hipcc was not found; install ROCm's HIP SDK"
        ;;
    vulkan)
        found glslc || stop 'glslc was not found; on Debian and Ubuntu: apt install glslc libvulkan-dev'
        ;;
esac

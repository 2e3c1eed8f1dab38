"""Lists the GPUs that llama.cpp can use, and selects GPUs for the model as PENSTOCK_DEVICE specifies."""

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import ModelError

#: ggml's types of GPUs, which can hold a model: one with its own memory, and an integrated one, which uses the host's.
_GPU, _INTEGRATED_GPU = 1, 2
#: Device files that exist if the machine has a GPU and its driver is loaded.
_DRIVER_FILES = (Path("/dev/nvidia0"), Path("/dev/kfd"))
_REBUILD = {
    "/dev/nvidia0": 'CMAKE_ARGS="-DGGML_CUDA=on" pip install --force-reinstall --no-cache-dir llama-cpp-python',
    "/dev/kfd": 'CMAKE_ARGS="-DGGML_HIP=on" pip install --force-reinstall --no-cache-dir llama-cpp-python',
}


@dataclass(frozen=True)
class Device:
    """One GPU, as llama.cpp reports it."""

    handle: int
    name: str
    description: str
    free_bytes: int
    total_bytes: int
    #: Whether it has no memory of its own, but uses the host's.
    integrated: bool = False


def gpus(ggml: Any) -> list[Device]:
    """Return the GPUs that this build of llama.cpp can use, in ggml's order. `ggml` is the loaded ggml library."""
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    handles = [ggml.ggml_backend_dev_get(i) for i in range(ggml.ggml_backend_dev_count())]
    return [describe(ggml, handle) for handle in handles if _type(ggml, handle) in (_GPU, _INTEGRATED_GPU)]


def describe(ggml: Any, handle: int) -> Device:
    """Return a device's name, description, kind, total memory and currently free memory."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    ggml.ggml_backend_dev_memory.restype = None
    ggml.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
    name, description = _text(ggml.ggml_backend_dev_name, handle), _text(ggml.ggml_backend_dev_description, handle)
    return Device(handle, name, description, free.value, total.value, _type(ggml, handle) == _INTEGRATED_GPU)


def choose(wanted: str, seen: list[Device], *, index: int = 0) -> list[Device]:
    """Return the GPUs that `wanted`, the value of PENSTOCK_DEVICE, selects; [] means the CPU.

    With `auto`, worker number `index` gets GPU number `index` modulo the number of GPUs, or the CPU if there is no GPU.
    Integrated GPUs are counted only if there are no others.
    Raises ModelError if `wanted` names a GPU twice, or one that this build of llama.cpp cannot use.
    """
    if wanted == "cpu":
        return []
    if wanted == "auto":
        candidates = [device for device in seen if not device.integrated] or seen
        return [candidates[index % len(candidates)]] if candidates else []
    numbers = [int(number) for number in wanted.split(",")]
    missing = [number for number in numbers if number >= len(seen)]
    if missing:
        available = ", ".join(f"{i} is {device.name}" for i, device in enumerate(seen)) or "no GPU"
        hint = f"; {advice}" if (advice := unused_gpu_advice(seen)) else ""
        raise ModelError(f"PENSTOCK_DEVICE={wanted!r}: this build of llama.cpp sees {available}{hint}")
    if len(set(numbers)) != len(numbers):
        raise ModelError(f"PENSTOCK_DEVICE={wanted!r} names a device twice")
    return [seen[number] for number in numbers]


def unused_gpu_advice(seen: list[Device], driver_files: tuple[Path, ...] = _DRIVER_FILES) -> str:
    """Return advice with a rebuild command if the machine has a GPU that this build cannot use, otherwise ""."""
    if seen:
        return ""
    for file in driver_files:
        if file.exists():
            command = _REBUILD.get(str(file), _REBUILD["/dev/nvidia0"])
            return (
                f"this machine has a GPU ({file}) that this build of llama-cpp-python cannot use; rebuild it: {command}"
            )
    return ""


def _type(ggml: Any, handle: int) -> int:
    ggml.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    ggml.ggml_backend_dev_type.restype = ctypes.c_int
    kind: int = ggml.ggml_backend_dev_type(handle)
    return kind


def _text(function: Any, handle: int) -> str:
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_char_p
    value: bytes | None = function(handle)
    return (value or b"").decode("utf-8", "replace")

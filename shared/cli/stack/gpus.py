"""How many GPUs the installed llama-cpp-python can use, found without loading it."""

import importlib.util
import os
import re
from pathlib import Path

#: A library of a build for GPUs, and where the driver shows a device each.
_BUILDS = (
    ("ggml-cuda", "CUDA_VISIBLE_DEVICES", Path("/dev"), re.compile(r"nvidia\d+")),
    ("ggml-hip", "HIP_VISIBLE_DEVICES", Path("/dev/dri"), re.compile(r"renderD\d+")),
)


def visible_gpus() -> int:
    """GPUs that the build can use and the environment shows; 0 for a build for CPUs."""
    package = importlib.util.find_spec("llama_cpp")
    places = [] if package is None else package.submodule_search_locations or []
    libraries = {file.name for place in places for file in (Path(place) / "lib").glob("*ggml-*")}
    for library, variable, devices, name in _BUILDS:
        if any(library in file for file in libraries):
            return _shown(variable, devices, name)
    # Vulkan and Metal do not tell by files how many devices they see; the engine takes the first.
    return 1 if any("ggml-vulkan" in file or "ggml-metal" in file for file in libraries) else 0


def _shown(variable: str, devices: Path, name: re.Pattern[str]) -> int:
    present = sum(1 for device in devices.glob("*") if name.fullmatch(device.name))
    chosen = os.environ.get(variable)
    if chosen is None:
        return present
    # As the driver reads it: what stands behind a number that is none is not seen.
    shown = 0
    for word in chosen.split(","):
        if not word.strip() or word.strip().startswith("-"):
            break
        shown += 1
    return min(shown, present)

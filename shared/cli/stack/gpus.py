"""Counts the GPUs that the installed llama-cpp-python can use, without loading it."""

import importlib.util
import os
import re
from pathlib import Path

#: For each kind of GPU build: a part of the file name of its library; the environment variable that selects devices;
#: and the folder in which the driver creates one file for each device, with the pattern of these files' names.
_BUILDS = (
    ("ggml-cuda", "CUDA_VISIBLE_DEVICES", Path("/dev"), re.compile(r"nvidia\d+")),
    ("ggml-hip", "HIP_VISIBLE_DEVICES", Path("/dev/dri"), re.compile(r"renderD\d+")),
)


def visible_gpus() -> int:
    """Return how many GPUs llama-cpp-python can use, without those that the environment hides; 0 for a CPU build."""
    package = importlib.util.find_spec("llama_cpp")
    locations = [] if package is None else package.submodule_search_locations or []
    libraries = {file.name for location in locations for file in (Path(location) / "lib").glob("*ggml-*")}
    for library, variable, folder, device_name in _BUILDS:
        if any(library in file for file in libraries):
            return _count_visible(variable, folder, device_name)
    # Vulkan and Metal devices have no files that could be counted. Return 1, because the engine uses just one device.
    return 1 if any("ggml-vulkan" in file or "ggml-metal" in file for file in libraries) else 0


def _count_visible(variable: str, folder: Path, device_name: re.Pattern[str]) -> int:
    """Return how many devices have a file in the folder, but at most as many as the environment variable selects."""
    present = sum(1 for device in folder.glob("*") if device_name.fullmatch(device.name))
    selection = os.environ.get(variable)
    if selection is None:
        return present
    # Like the driver, ignore the first invalid entry (empty or negative) and all entries after it.
    selected = 0
    for entry in selection.split(","):
        if not entry.strip() or entry.strip().startswith("-"):
            break
        selected += 1
    return min(selected, present)

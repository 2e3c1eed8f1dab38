"""Collects llama.cpp's log, extracts buffer sizes, layer counts and errors, and logs the errors of a loaded model."""

import re
from collections import deque
from contextlib import suppress

from shared.log import get_logger

_log = get_logger()

_MIB = 1 << 20
#: How the names of buffers in the host's memory begin or end: CPU, CPU_Mapped, CPU_REPACK, CUDA_Host, Vulkan_Host.
_HOST_BEGINNING, _HOST_END = "CPU", "_Host"
#: ggml's log levels for warnings and errors.
_WARN, _ERROR = 3, 4
#: The most errors of one model that are logged, and the most characters of one.
_MAX_LOGGED, _MAX_ERROR = 200, 1000
_BUFFER = re.compile(r"(\S+)\s+(model|LoRA|KV|RS|compute|output) buffer size\s*=\s*([\d.]+) MiB")
#: A device may have several buffers of these kinds: one for layers with a sliding window and one for the others, or one
#: for each adapter.
_SUMMED = ("KV", "RS", "LoRA")
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")


def is_host(device: str) -> bool:
    """Return whether a buffer of this device, as the log names it, is in the host's memory."""
    return device.startswith(_HOST_BEGINNING) or device.endswith(_HOST_END)


class LlamaLog:
    """Receives llama.cpp's log lines. Keeps the last errors and warnings, the buffer sizes and the layer counts.

    llama.cpp may call `add_line` from any thread. `add_line` never raises.
    """

    def __init__(self) -> None:
        self._errors: deque[str] = deque(maxlen=8)
        self._warnings: deque[str] = deque(maxlen=8)
        #: (device, kind) → bytes of the buffers. The memory of one context may consist of several buffers, whose sizes
        #: are added up. If llama.cpp reserves a buffer for computing again, the latest size is kept.
        self._buffers: dict[tuple[str, str], int] = {}
        self.layers_offloaded = self.layers = 0
        #: Whether errors are logged at once, because the process may die before anybody asks for them. While a model is
        #: loaded they are not: the exception that ends loading has them, and some sizes are only tried.
        self.logs_errors = False
        self._logged = 0

    def add_line(self, level: int, text: str) -> None:
        """Process one log line. `level` is a log level of ggml."""
        if level in (_WARN, _ERROR):
            if stripped := text.strip()[:_MAX_ERROR]:
                self._add_complaint(self._errors if level == _ERROR else self._warnings, stripped)
        elif (found := _BUFFER.search(text)) is not None:
            before = self._buffers.get((found[1], found[2]), 0) if found[2] in _SUMMED else 0
            self._buffers[found[1], found[2]] = before + int(float(found[3]) * _MIB)
        elif (found := _OFFLOADED.search(text)) is not None:
            self.layers_offloaded, self.layers = int(found[1]), int(found[2])

    def _add_complaint(self, kept: deque[str], line: str) -> None:
        """Keep an error or a warning, and log an error that is not among the last ones."""
        if self.logs_errors and kept is self._errors and line not in kept and self._logged < _MAX_LOGGED:
            self._logged += 1
            with suppress(OSError, ValueError):
                _log.error("engine.llama", error=line)
        kept.append(line)

    def clear(self) -> None:
        """Discard everything collected so far. Called before a model is loaded."""
        self.logs_errors, self._logged = False, 0
        self.forget_complaints()
        self._buffers.clear()
        self.layers_offloaded = self.layers = 0

    def forget_complaints(self) -> None:
        """Discard the errors and warnings so far. Called before something else is loaded for the same model."""
        self._errors.clear()
        self._warnings.clear()

    def forget_context(self) -> None:
        """Discard the sizes of the buffers of a context. Called before another context is created."""
        self._buffers = {name: size for name, size in self._buffers.items() if name[1] in {"model", "LoRA"}}

    def errors(self) -> str:
        """Return the last errors joined by "; ". If there are no errors, return the last warnings; if none, ""."""
        return "; ".join(dict.fromkeys(self._errors or self._warnings))

    def buffer_bytes(self, *kinds: str) -> int:
        """Return the total bytes of all buffers of these kinds: `model`, `LoRA`, `KV`, `RS`, `compute` or `output`."""
        return sum(size for (_, kind), size in self._buffers.items() if kind in kinds)

    def device_bytes(self, *kinds: str) -> dict[str, int]:
        """Return the bytes of all buffers of these kinds, by the name of their device or of their kind of memory."""
        sums: dict[str, int] = {}
        for (device, kind), size in self._buffers.items():
            if kind in kinds:
                sums[device] = sums.get(device, 0) + size
        return sums

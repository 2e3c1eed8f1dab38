"""Collects llama.cpp's log instead of printing it, and extracts buffer sizes, layer counts and errors."""

import re
from collections import deque

_MIB = 1 << 20
#: ggml's log levels for warnings and errors.
_WARN, _ERROR = 3, 4
_BUFFER = re.compile(r"(\S+)\s+(model|KV|RS|compute|output) buffer size\s*=\s*([\d.]+) MiB")
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")


class LlamaLog:
    """Receives llama.cpp's log lines. Keeps the last errors and warnings, the buffer sizes and the layer counts.

    llama.cpp may call `add_line` from any thread. `add_line` never raises.
    """

    def __init__(self) -> None:
        self._errors: deque[str] = deque(maxlen=8)
        self._warnings: deque[str] = deque(maxlen=8)
        #: (device, kind) → size of the buffer in bytes. If llama.cpp reserves a buffer again, the latest size is kept.
        self._buffers: dict[tuple[str, str], int] = {}
        self.layers_offloaded = self.layers = 0

    def add_line(self, level: int, text: str) -> None:
        """Process one log line. `level` is a log level of ggml."""
        if level in (_WARN, _ERROR):
            if stripped := text.strip():
                (self._errors if level == _ERROR else self._warnings).append(stripped)
        elif (found := _BUFFER.search(text)) is not None:
            self._buffers[found[1], found[2]] = int(float(found[3]) * _MIB)
        elif (found := _OFFLOADED.search(text)) is not None:
            self.layers_offloaded, self.layers = int(found[1]), int(found[2])

    def clear(self) -> None:
        """Discard everything collected so far. Called before a model is loaded."""
        self._errors.clear()
        self._warnings.clear()
        self._buffers.clear()
        self.layers_offloaded = self.layers = 0

    def errors(self) -> str:
        """Return the last errors joined by "; ". If there are no errors, return the last warnings; if none, ""."""
        return "; ".join(dict.fromkeys(self._errors or self._warnings))

    def buffer_bytes(self, *kinds: str) -> int:
        """Return the total bytes of all buffers of these kinds: `model`, `KV`, `RS`, `compute` or `output`."""
        return sum(size for (_, kind), size in self._buffers.items() if kind in kinds)

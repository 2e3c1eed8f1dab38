"""What llama.cpp says while it loads: kept instead of printed, and read for sizes and causes."""

import re
from collections import deque

_MIB = 1 << 20
#: ggml's levels: 3 warns, 4 is an error.
_WARN, _ERROR = 3, 4
_BUFFER = re.compile(r"(\S+)\s+(model|KV|RS|compute|output) buffer size\s*=\s*([\d.]+) MiB")
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")


class LlamaLog:
    """A sink for log lines. Called by whichever thread llama.cpp logs from; keeps little and never raises."""

    def __init__(self) -> None:
        self._errors: deque[str] = deque(maxlen=8)
        self._warnings: deque[str] = deque(maxlen=8)
        #: (device, kind) → bytes; a buffer that is reserved again replaces its line.
        self._buffers: dict[tuple[str, str], int] = {}
        self.layers_offloaded = self.layers = 0

    def line(self, level: int, text: str) -> None:
        """Take in one line."""
        if level in (_WARN, _ERROR):
            if stripped := text.strip():
                (self._errors if level == _ERROR else self._warnings).append(stripped)
        elif (found := _BUFFER.search(text)) is not None:
            self._buffers[found[1], found[2]] = int(float(found[3]) * _MIB)
        elif (found := _OFFLOADED.search(text)) is not None:
            self.layers_offloaded, self.layers = int(found[1]), int(found[2])

    def forget(self) -> None:
        """Start anew, before a load."""
        self._errors.clear()
        self._warnings.clear()
        self._buffers.clear()
        self.layers_offloaded = self.layers = 0

    def errors(self) -> str:
        """The last errors, or the last warnings when there were none, as a sentence's end; "" without either."""
        return "; ".join(dict.fromkeys(self._errors or self._warnings))

    def buffer_bytes(self, *kinds: str) -> int:
        """Bytes of all buffers of these kinds (`model`, `KV`, `RS`, `compute`, `output`), on all devices."""
        return sum(size for (_, kind), size in self._buffers.items() if kind in kinds)

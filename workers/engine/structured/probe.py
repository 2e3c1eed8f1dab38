"""Compiles a grammar in a helper process first, which ends if that takes too much CPU time or memory.

llguidance's limits do not bound the time to compile a grammar: twenty properties with `multipleOf`, each of
seven digits, took longer than 25 s of CPU time. A thread that compiles cannot be stopped, but a process can.
"""

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.engine import helper
from workers.engine.helper import Ended, Helpers

_MAIN = Path(__file__).with_name("probe_main.py")
#: The address space of a helper process. A grammar within the limits of llguidance takes less than 200 MB.
MAX_BYTES = 2 << 30


@dataclass(frozen=True)
class Verdict:
    """Whether a grammar can be compiled in this process: `error` is "" if so.

    `cpu_s` is the CPU time it took. If the helper process ended, this is the most that it may have taken.
    """

    error: str
    cpu_s: float


class Probes:
    """Compiles grammars in helper processes. May be used from any thread.

    Each grammar may take `cpu_ms` ms of CPU time, and each process `max_bytes` bytes of address space. `limits` are
    those of llguidance.
    """

    def __init__(self, cpu_ms: int, limits: dict[str, Any], *, max_bytes: int = MAX_BYTES) -> None:
        self._cpu_ms, self._max_bytes = cpu_ms, max_bytes
        self._helpers = Helpers(_MAIN, [str(cpu_ms), json.dumps(limits), str(max_bytes)])

    def check(self, grammar: str) -> Verdict:
        """Compile the grammar in a helper process. This takes at most the allowed CPU time and memory.

        Raises RuntimeError if no helper process can be started.
        """
        answer = self._helpers.ask(json.dumps(grammar).encode() + b"\n")
        if isinstance(answer, Ended):
            return Verdict(self._why_ended(answer.code), self._cpu_ms / 1000 + answer.start_s)
        return Verdict(*answer)

    def _why_ended(self, code: int | None) -> str:
        """Return why there is no answer. `code` is what the process ended with; None if it had not ended."""
        if code == -signal.SIGPROF:
            return f"it takes more than {self._cpu_ms} ms to compile"
        if code == -signal.SIGABRT:
            return f"it takes more than {self._max_bytes >> 20} MiB of memory to compile"
        if code is None:
            return f"it was not compiled within {helper.ANSWER_S:g} s"
        return f"the process that compiled it ended with {code}"

    def close(self) -> None:
        self._helpers.close()

"""Renders a chat template in a helper process, within limits on time, memory and the size of the prompt.

The template is untrusted code from the model's file. A thread in which it loops cannot be stopped, but a process can.
"""

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from workers.engine import helper
from workers.engine.helper import Ended, Helpers

_MAIN = Path(__file__).with_name("template_main.py")
#: The address space of a helper process. It takes 30 MB to start, and less than 100 MB for 1 MiB of messages.
_MAX_BYTES = 512 << 20
#: How many characters a prompt may have, besides a multiple of those that it is made of.
_MAX_CHARACTERS, _MAX_TIMES = 4 << 20, 4


class RenderFailed(Exception):
    """The template does not accept the messages, or fails on them."""


class TemplateBroken(Exception):
    """The template cannot be compiled."""


class RenderStopped(Exception):
    """Rendering takes too much time or memory, or makes too long a prompt."""


class Allowance:
    """The CPU time that a helper process may still take, for all attempts to render one conversation."""

    def __init__(self, cpu_ms: float) -> None:
        self._cpu_s, self.spent_s = cpu_ms / 1000, 0.0
        #: Why the template was stopped, if it was; nothing is rendered afterwards.
        self.stopped: RenderStopped | None = None

    @property
    def left_ms(self) -> float:
        return 1000 * (self._cpu_s - self.spent_s)


class Renderer:
    """Renders one template. May be used from any thread. `cpu_ms` is the CPU time that a conversation may take."""

    def __init__(self, source: str, *, bos: str, eos: str, cpu_ms: int) -> None:
        self._cpu_ms = cpu_ms
        template = _line({"source": source, "bos": bos, "eos": eos})
        self._helpers = Helpers(_MAIN, [str(cpu_ms), str(_MAX_BYTES)], first=template)

    def allowance(self, conversations: int = 1) -> Allowance:
        return Allowance(conversations * self._cpu_ms)

    def render(self, variables: Mapping[str, Any], allowance: Allowance) -> str:
        """Return the text for these variables of the template. The used time is subtracted from the allowance.

        Raises RenderFailed, RenderStopped, TemplateBroken, or HelperMissing if no helper process can be started.
        """
        if allowance.stopped is not None:
            raise allowance.stopped
        cpu_ms = min(allowance.left_ms, self._cpu_ms)
        if cpu_ms < 1:
            self._stop(allowance, self._too_slow)
        given = _line(dict(variables))
        max_characters = _MAX_CHARACTERS + _MAX_TIMES * len(given)
        line = b"[%.3f, %d, %s]\n" % (cpu_ms, max_characters, given[:-1])
        answer = self._helpers.ask(line)
        if isinstance(answer, Ended) and answer.code not in (-signal.SIGPROF, None):
            # Something else has ended the process, such as the kernel when the machine had no memory left.
            answer = self._helpers.ask(line)
        if isinstance(answer, Ended):
            allowance.spent_s += cpu_ms / 1000 + answer.start_s
            self._stop(allowance, self._why_ended(answer.code))
        kind, text, cpu_s = answer
        allowance.spent_s += cpu_s
        if kind == "prompt":
            return str(text)
        if kind == "memory":
            self._stop(allowance, f"needs more than {_MAX_BYTES >> 20} MiB of memory")
        if kind == "too long":
            self._stop(allowance, f"makes more than {max_characters} characters of it")
        if kind == "broken":
            raise TemplateBroken(text)
        raise RenderFailed(f"{'does not accept it' if kind == 'refused' else 'fails on it'}: {text}")

    @property
    def _too_slow(self) -> str:
        return f"takes more than {self._cpu_ms} ms of CPU time (PENSTOCK_TEMPLATE_CPU_MS)"

    def _why_ended(self, code: int | None) -> str:
        if code == -signal.SIGPROF:
            return self._too_slow
        if code is None:
            return f"was not rendered within {helper.ANSWER_S:g} s"
        return f"ends the process that renders it, with {code}"

    def _stop(self, allowance: Allowance, why: str) -> NoReturn:
        allowance.stopped = RenderStopped(why)
        raise allowance.stopped

    def close(self) -> None:
        self._helpers.close()


def _line(value: object) -> bytes:
    """Return the value as a line of JSON. Halves of surrogate pairs stay what they are."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"

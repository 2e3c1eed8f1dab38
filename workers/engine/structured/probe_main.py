"""The helper process that compiles grammars first; it ends if a grammar takes too much CPU time or memory.

It is run as a script, and imports nothing but llguidance and the standard library, so that it starts in about 50 ms. It
reads one JSON line for each grammar and answers with one JSON line; its first line says that it is ready.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import time
from typing import Any

import llguidance


class ByteTokenizer:
    """A vocabulary of single bytes. A grammar is compiled in the same way for each vocabulary."""

    eos_token_id, bos_token_id, is_tokenizer_wrapper = 256, None, True
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"\xff<end>")

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def serve(cpu_ms: int, limits: dict[str, Any]) -> None:
    """Compile the grammars that arrive, until the input ends. Each may take `cpu_ms` ms of CPU time."""
    vocabulary: Any = ByteTokenizer()
    tokenizer = llguidance.LLTokenizer(vocabulary, n_vocab=257, eos_token=256)
    parser_limits = llguidance.LLParserLimits(**limits)
    _answer(time.process_time())
    for line in sys.stdin.buffer:
        began_s = time.process_time()
        # When the timer ends, the signal's default action ends the process.
        signal.setitimer(signal.ITIMER_PROF, cpu_ms / 1000)
        matcher = llguidance.LLMatcher(tokenizer, json.loads(line), log_level=0, limits=parser_limits)
        if not matcher.is_error():
            matcher.compute_bitmask()
        error = matcher.get_error()
        signal.setitimer(signal.ITIMER_PROF, 0)
        _answer([error, time.process_time() - began_s])


def _answer(answer: object) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    max_bytes = int(sys.argv[3])
    # Not every system can limit these.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    try:
        serve(int(sys.argv[1]), json.loads(sys.argv[2]))
    except MemoryError:
        # llguidance ends the process in this way if it gets no memory.
        os.abort()

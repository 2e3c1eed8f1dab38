"""Divides the text of a document: a short one here, and a longer one in a process that is killed at its limits.

Dividing a megabyte takes half a second of CPU time, and some seconds if it consists of line ends. The door's event loop
must not wait for that.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from web.retrieval.division import Division, TooManyChunks, titled_chunks
from web.retrieval.parsing import ParseLimits, parser_place, read_apart

_COMMAND = (sys.executable, "-P", "-s", "-m", "web.retrieval.division_child")
#: The most bytes of a text that is divided here, which takes at most some hundredths of a second.
INLINE_BYTES = 8_192
#: The limits of the process; the CPU time is that of the largest documents.
_LIMITS = ParseLimits(cpu_s=30)
#: The most bytes of a chunk's titles and of its entry in the line of JSON.
_OVERHEAD_BYTES = 1_024


def divided(
    text: str, division: Division, until: float, *, tenant: str = "", command: Sequence[str] = _COMMAND
) -> list[tuple[str, int]]:
    """Return the chunks of a text, each with its tokens.

    Raises TooManyChunks; UnreadableDocument if the text cannot be divided within the limits and by `until`, in seconds
    of time.monotonic(); ParsersBusy if no process may be started for the tenant by then.
    """
    content = text.encode("utf-8", "surrogatepass")
    if len(content) <= INLINE_BYTES:
        return titled_chunks(text, division)
    with parser_place(tenant, until):
        wall_s = max(0.0, min(_LIMITS.wall_s, until - time.monotonic()))
        # Chunks overlap by half at most.
        limits = replace(_LIMITS, wall_s=wall_s, text_bytes=2 * len(content) + _OVERHEAD_BYTES * division.most)
        answer, output = read_apart(content, {"division": division.dump()}, limits, command)
    if answer["chunks"] is None:
        raise TooManyChunks
    chunks, at = list[tuple[str, int]](), 0
    for size, tokens in answer["chunks"]:
        chunks.append((output[at : at + size].decode("utf-8", "surrogatepass"), tokens))
        at += size
    return chunks

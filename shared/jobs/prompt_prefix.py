"""Digests of the beginnings of a prompt, with which the store finds a worker that has computed the same beginning.

A worker keeps the computed cells of a tenant's prompts, and computes of a new prompt only what differs. The door knows
no tokens, so equal beginnings are recognized by their characters.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from shared.jobs.request_texts import compact, message_text, shown_tools

#: The lengths of the beginnings that have a digest, in characters. A shorter prompt is computed quickly anyway.
LENGTHS = (256, 1_024, 4_096, 16_384)
#: Two of a million beginnings have the same digest with a probability of 1 in 500. A wrong match costs a prefill.
_DIGEST_BYTES = 6


def prefix_digests(tenant: str, payload: Mapping[str, Any]) -> str:
    """Return the digests of the prompt's beginnings, shortest first and separated by spaces; "" if it is short.

    They depend on the tenant, because workers reuse no cells of another tenant. Tools count as the prompt's beginning,
    where most templates show them. Requests with several prompts or without a text to continue have no digests.
    """
    text, begin = "", _pieces(payload)
    while len(text) < LENGTHS[-1] and (piece := next(begin, None)) is not None:
        text += piece[: LENGTHS[-1]]
    digest, digests, done = blake2b(tenant.encode() + b"\0", digest_size=_DIGEST_BYTES), [], 0
    for length in LENGTHS:
        if length > len(text):
            break
        digest.update(text[done:length].encode(errors="surrogatepass"))
        digests.append(digest.hexdigest())
        done = length
    return " ".join(digests)


def _pieces(payload: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parts of the prompt in their order."""
    if "messages" not in payload:
        yield payload["prompt"] if isinstance(payload.get("prompt"), str) else ""
        return
    if tools := shown_tools(payload):
        yield compact(tools)
    for message in payload["messages"]:
        yield f"\n{message.get('role')}\n"
        yield message_text(message)

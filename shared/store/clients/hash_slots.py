"""In which of a cluster's 16,384 hash slots a key lies, as Redis and Valkey compute it."""

import binascii


def hash_tag(key: str) -> str:
    """Return the part of a key that decides its slot, if that is not the whole key: the text in its first braces."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if opened and closed else ""


def slot_of(key: str) -> int:
    return binascii.crc_hqx((hash_tag(key) or key).encode(), 0) % 16_384

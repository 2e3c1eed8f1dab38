"""Digests of bodies and keys that identify repeats of a request; pure functions."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def given_fields(body: BaseModel) -> dict[str, Any]:
    """Return the fields that the client set, without its return ticket, which a repeat of the request has anew."""
    return body.model_dump(exclude_none=True, exclude_unset=True, exclude={"return_ticket"})


def body_digest(body: Mapping[str, Any]) -> str:
    """Return a digest of a parsed body, which does not depend on whitespace or on the order of the body's fields."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def digest(*parts: str) -> str:
    """Return one digest of several texts, for use in job ids and store keys.

    The length of each text is hashed before the text, so that ("a", "bc") and ("ab", "c") have different digests.
    """
    return hashlib.sha256(b"".join(len(part.encode()).to_bytes(8) + part.encode() for part in parts)).hexdigest()

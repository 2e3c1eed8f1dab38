"""Signs webhooks as Standard Webhooks demands: an HMAC over the id, the time and the body."""

import base64
import hashlib
import hmac
from collections.abc import Sequence


def signed_headers(webhook_id: str, timestamp_s: int, body: bytes, secrets: Sequence[bytes]) -> dict[str, str]:
    """Return the three headers of a webhook; each of the secrets signs it."""
    signed = f"{webhook_id}.{timestamp_s}.".encode() + body
    digests = (hmac.new(secret, signed, hashlib.sha256).digest() for secret in secrets)
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests),
    }

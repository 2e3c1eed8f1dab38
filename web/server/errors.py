"""Write a JSON error object straight to a connection, for requests that never reach the app."""

import json
import secrets
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from web.http.api_errors import ApiError, error_response

#: How long the client may take to make room for the error, in seconds. An error is shorter than any socket buffer.
_SEND_TIMEOUT_S = 1.0


def send_error(sock: Any, error: ApiError) -> str:
    """Send the response for an error, and return its request id. Errors of the connection are ignored."""
    request_id = secrets.token_hex(16)
    response = error_response(error)
    body = json.dumps(response.body).encode() + b"\n"
    headers = {"x-request-id": request_id, "Content-Type": "application/json", "Content-Length": len(body)}
    lines = [f"{name}: {value}" for name, value in (headers | response.headers | {"Connection": "close"}).items()]
    head = "\r\n".join([f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}", *lines, "", ""])
    with suppress(OSError):
        sock.settimeout(_SEND_TIMEOUT_S)
        sock.sendall(head.encode() + body)
    return request_id

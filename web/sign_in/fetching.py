"""Fetches a JSON object from an issuer, within a limit of time and of bytes, and without following redirects."""

import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

from shared.settings.sign_in_roles import url_problem
from web.http.bounded_connection import BoundedConnection

#: The most time that one exchange may take after the name is resolved, in seconds, and the most bytes of an answer.
#: Discovery documents take about 5 KB, and the key sets of large issuers 20 KB.
EXCHANGE_S, MAX_BYTES = 4.0, 262_144
_CONNECT_S = 3.0


class FetchFailed(Exception):
    """Nothing useful came from the URL; the message says why, as the end of a sentence that begins with the URL."""


def fetch_object(url: str) -> dict[str, Any]:
    """Return the JSON object at an https URL, or at an http URL on a loopback address. Raises FetchFailed."""
    problem = url_problem(url, may_have_query=True)
    if problem:
        raise FetchFailed(problem)
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if is_tls else 80)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        plain = socket.create_connection((host, port), timeout=_CONNECT_S)
    except OSError as error:
        raise FetchFailed(f"cannot be reached: {error.strerror or error}") from None
    with BoundedConnection(plain, EXCHANGE_S) as connection:
        try:
            if is_tls:
                connection.start_tls(host)
            named = {"Accept": "application/json", "Connection": "close"}
            with connection.exchange("GET", host, port, path, named, most=MAX_BYTES) as answer:
                return _object(answer)
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            reason = f"it took longer than {EXCHANGE_S:g} s" if connection.took_too_long(error) else str(error)[:200]
            raise FetchFailed(f"gave no usable answer: {reason}") from None


def _object(answer: http.client.HTTPResponse) -> dict[str, Any]:
    if answer.status != 200:
        raise ValueError(f"its status is {answer.status}, not 200")
    found = json.loads(answer.read())
    if isinstance(found, dict):
        return found
    raise ValueError("it is not a JSON object")

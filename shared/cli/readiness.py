"""Ask a door whether it is ready to admit jobs, and say why not."""

from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

#: How long a door may take to answer, in seconds. One that is up answers in milliseconds.
_ANSWER_S = 1.0
#: How much of an unexpected answer is repeated, in bytes.
_REPEATED_BYTES = 500


def why_not_ready(url: str, *, host: str = "") -> str:
    """Return the reason why the door at the URL is not ready, or "" if it is.

    `host` is the Host header to send, for a door that does not serve the URL's own host.
    """
    try:
        parts = urlsplit(url)
        connection_class = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        with closing(connection_class(parts.hostname or "", parts.port, timeout=_ANSWER_S)) as connection:
            connection.request("GET", f"{parts.path.rstrip('/')}/health/ready", headers={"Host": host} if host else {})
            response = connection.getresponse()
            body = response.read(_REPEATED_BYTES).decode(errors="replace").strip()
    except (OSError, HTTPException, ValueError) as error:
        return f"the door does not answer yet ({error})"
    return "" if response.status == 200 else f"the door answers with status {response.status}: {body}"

"""Asks an OpenAI-compatible server which model it serves, for `penstock up --upstream`."""

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any

from shared.cli import output
from shared.errors import ConfigError
from shared.proxies import proxy_handler

#: How long the server may take to answer, and the most bytes of its answer that are read.
_TIMEOUT_S, _MAX_BYTES = 10.0, 1 << 20
#: How long a server that is starting is waited for: loading a large model takes minutes. The pause between two requests
#: to it, and the time after which the wait is reported again, all in seconds.
WAIT_S, _PAUSE_S, _REPORT_S = 1_800.0, 0.5, 30.0
#: The statuses with which a server, or a proxy in front of it, says that it is not ready.
_NOT_READY = frozenset({408, 425, 429, 500, 502, 503, 504})


def only_model(url: str, api_key: str, *, wait_s: float = WAIT_S) -> str:
    """Return the name of the only model of the server with this base URL. Waits for a server that is still starting.

    Raises ConfigError if the server does not answer for `wait_s`, or if it serves several models or none.
    """
    return _name_in(url, _list(url, api_key, wait_s))


def _list(url: str, api_key: str, wait_s: float) -> bytes:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    opener = urllib.request.build_opener(proxy_handler(url))
    request = urllib.request.Request(f"{url.rstrip('/')}/models", headers=headers)  # noqa: S310 - see below
    began_s, reported_s = time.monotonic(), float("-inf")
    while True:
        try:
            # The URL is the operator's own, and the settings accept only http and https.
            with opener.open(request, timeout=_TIMEOUT_S) as response:
                listed: bytes = response.read(_MAX_BYTES)
                return listed
        except urllib.error.HTTPError as error:
            why, is_starting = str(error), error.code in _NOT_READY
            error.close()
        except (OSError, http.client.HTTPException) as error:
            why, is_starting = str(getattr(error, "reason", error)), True
        now_s = time.monotonic()
        if not is_starting or now_s - began_s >= wait_s:
            raise ConfigError(
                f"--upstream {url}: the server did not say which models it serves ({why}); "
                "name one with --upstream-model"
            )
        if now_s - reported_s >= _REPORT_S:
            reported_s = now_s
            output.write_note(f"penstock: waiting for {url} ({why}); with --upstream-model, it need not be asked")
        time.sleep(_PAUSE_S)


def _name_in(url: str, body: bytes) -> str:
    try:
        listed: Any = json.loads(body)
        names = [str(model["id"]) for model in listed["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(
            f"--upstream {url}: GET {url}/models is no list of models; name one with --upstream-model"
        ) from None
    if len(names) != 1:
        found = ", ".join(names[:10]) or "none"
        raise ConfigError(
            f"--upstream {url}: the server serves {len(names)} models ({found}); name each that you want with "
            "--upstream-model"
        )
    return names[0]

"""Asks an OpenAI-compatible server which model it serves, for `penstock up --upstream`."""

import json
import urllib.error
import urllib.request

from shared.errors import ConfigError

#: How long the server may take to answer, and the most bytes of its answer that are read.
_TIMEOUT_S, _MAX_BYTES = 10.0, 1 << 20


def only_model(url: str, api_key: str) -> str:
    """Return the name of the only model of the server with this base URL.

    Raises ConfigError if the server cannot be reached, or if it serves several models or none.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        request = urllib.request.Request(f"{url.rstrip('/')}/models", headers=headers)  # noqa: S310 - see below
        # The URL is the operator's own, and the settings accept only http and https.
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310 - see above
            listed = json.loads(response.read(_MAX_BYTES))
        names = [str(model["id"]) for model in listed["data"]]
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--upstream {url}: the server did not say which models it serves ({error}); name one with --upstream-model"
        ) from None
    except (KeyError, TypeError):
        raise ConfigError(
            f"--upstream {url}: GET {url}/models is no list of models; name one with --upstream-model"
        ) from None
    if len(names) != 1:
        found = ", ".join(names[:10]) or "none"
        raise ConfigError(
            f"--upstream {url}: the server serves {len(names)} models ({found}); name one with --upstream-model"
        )
    return names[0]

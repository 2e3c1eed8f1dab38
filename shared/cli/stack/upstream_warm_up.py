"""Lets the upstream of `penstock up` load its models: a server that lists a model may still be loading it."""

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable

from shared.cli.stack.upstream_model import WAIT_S
from shared.proxies import proxy_handler

#: The pause between two requests to a server that is not ready, in seconds.
_PAUSE_S = 0.5
#: The statuses with which a server, or a proxy in front of it, says that it cannot compute yet. Any other one is the
#: answer of a server that has started.
_NOT_READY = frozenset({502, 503, 504})
#: How much of an error's body is read, and how much of it is shown, in bytes and characters.
_MAX_BYTES, _SHOWN = 4096, 200


class WarmUp:
    """Asks the upstream for one token of each model, one after the other, in a thread of its own."""

    def __init__(
        self, url: str, api_key: str, models: Iterable[str], report: Callable[[str], None], *, wait_s: float = WAIT_S
    ) -> None:
        """`report` is called with what is waited for and how it ends, from another thread.

        `wait_s` is the time, in seconds, for all models together.
        """
        self._url, self._models, self._report, self._wait_s = (
            url.rstrip("/"),
            list(dict.fromkeys(models)),
            report,
            wait_s,
        )
        self._headers = {"Content-Type": "application/json"}
        self._headers |= {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._reason = ""

    def start(self) -> None:
        """Begin, unless there are no models. Raises ConfigError if the proxy of the environment has no valid URL."""
        if self._models:
            self._reason = f"the upstream {self._url} has not answered its first request yet"
            opener = urllib.request.build_opener(proxy_handler(self._url))
            # It may be inside a request when the program ends.
            threading.Thread(target=self._run, args=(opener,), name="upstream-warm-up", daemon=True).start()

    def not_done(self) -> str:
        """Return what is waited for, or "" once every model has answered, or time is up."""
        return self._reason

    def _run(self, opener: urllib.request.OpenerDirector) -> None:
        ends_s = time.monotonic() + self._wait_s
        for model in self._models:
            self._wait_for(opener, model, ends_s)
        self._reason = ""

    def _wait_for(self, opener: urllib.request.OpenerDirector, model: str, ends_s: float) -> None:
        """Ask for the model until it answers, or time is up: then the stack may serve other models meanwhile."""
        began_s, said = time.monotonic(), ""
        while why := self._ask(opener, model, max(1.0, ends_s - time.monotonic())):
            if time.monotonic() >= ends_s:
                self._report(
                    f"the upstream {self._url} was not ready to compute {model!r} within {self._wait_s:.0f} s "
                    f"({why}), and is not waited for any longer; see its own log"
                )
                return
            self._reason = f"waiting for the upstream {self._url} to load {model!r} ({why})"
            if said != why:
                self._report(self._reason)
            said = why
            time.sleep(_PAUSE_S)
        if said:
            self._report(f"the upstream has loaded {model!r} after {time.monotonic() - began_s:.0f} s")

    def _ask(self, opener: urllib.request.OpenerDirector, model: str, timeout_s: float) -> str:
        """Ask for one token; return why the server is not ready, or "" if it has answered.

        A refusal counts as an answer: the worker reports a wrong key or model, and a model for embeddings has no chat.
        """
        body = {"model": model, "messages": [{"role": "user", "content": "."}], "max_tokens": 1}
        request = urllib.request.Request(  # noqa: S310 - the settings accept only http and https
            f"{self._url}/chat/completions", json.dumps(body).encode(), self._headers
        )
        try:
            with opener.open(request, timeout=timeout_s) as response:
                response.read(_MAX_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                return f"{error.code}{_message(error)}" if error.code in _NOT_READY else ""
        except (OSError, http.client.HTTPException) as error:
            return str(getattr(error, "reason", error)) or type(error).__name__
        return ""


def _message(error: urllib.error.HTTPError) -> str:
    """Return the error's message with a space before it, or "" without one. It may be hostile, so it is printable."""
    try:
        message = str(json.loads(error.read(_MAX_BYTES))["error"]["message"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return " " + "".join(char for char in message[:_SHOWN] if char.isprintable())

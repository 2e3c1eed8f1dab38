"""Checks whether the upstream accepts this worker and has its model, before jobs are sent and after a refusal."""

import json
import re
from typing import Any

from shared.log import get_logger
from workers.upstream.client import UpstreamClient

log = get_logger()

#: With these statuses an upstream rejects a worker: its key or its URL is wrong.
_NOT_ACCEPTED = frozenset({301, 302, 303, 307, 308, 401, 403})
#: Where lists of models say how long a job may be: vLLM and SGLang, llama-server, and others. The first one counts.
_LENGTHS = (("max_model_len",), ("meta", "n_ctx"), ("context_length",), ("max_context_length",), ("context_window",))
#: Servers write this about a model that they do not have.
_UNKNOWN_MODEL = re.compile(
    r"not (exist|found|available|known|loaded|supported)|unknown|invalid|no such", re.IGNORECASE
)
#: A length above this was not meant.
_MAX_LENGTH = 1 << 30


class ModelCheck:
    """Asks the upstream for its models. Only the event loop's thread uses it, but any thread may read the length."""

    def __init__(self, upstream: UpstreamClient, model: str) -> None:
        self._upstream, self._model = upstream, model
        #: How many tokens prompt and answer may have together, according to the upstream; None if it does not say so.
        self.max_model_len: int | None = None
        self._is_known, self._logged = False, ""

    async def probe(self) -> str:
        """Return "" if the upstream takes requests for the model, otherwise why it does not.

        Logs `upstream.misconfigured` if an operator must act.
        """
        status, body = await self._upstream.ask("models")
        if isinstance(status, str):
            return status
        if status >= 500 or status == 429:
            return f"GET models answered {status}"
        why = await self._why_not(status, body)
        if why and why != self._logged:
            log.error("upstream.misconfigured", why=why)
        self._logged = why
        return why

    async def probe_as_client(self, model: str) -> str:
        """Return "" if the upstream accepts this worker's requests, otherwise why it does not.

        `model` is "", or the model for which the upstream has just answered 404, so that a list without it counts. Some
        servers list their models without a key, so an empty request is sent otherwise.
        """
        if why := await self.probe():
            return why
        path = "models" if model else "chat/completions"
        status, body = await self._upstream.ask(path, None if model else {})
        if isinstance(status, str):
            return status
        if status in _NOT_ACCEPTED or (model and status != 200):
            return f"the upstream answered {status} to {path}"
        listed = read_list(body) if model else None
        return f"the upstream has no model {model!r}" if listed and model not in listed else ""

    async def _why_not(self, status: int, body: bytes) -> str:
        if status in _NOT_ACCEPTED:
            # Some keys may not list models. An empty request is invalid, whoever sends it.
            status, _ = await self._ask_chat({})
            why = "it does not accept this worker's key" if status in {401, 403} else "PENSTOCK_UPSTREAM_URL is wrong"
            return f"the upstream answered {status}: {why}" if status in _NOT_ACCEPTED else ""
        listed = read_list(body) if status == 200 else None
        if listed is None or self._model in listed:
            self.max_model_len = (listed or {}).get(self._model)
            return ""
        if not self._is_known:
            # Some servers take other names than those that they list, or any.
            one_token = {"model": self._model, "messages": [{"role": "user", "content": "."}], "max_tokens": 1}
            status, answer = await self._ask_chat(one_token)
            if lacks_model(status, answer, self._model):
                has = ", ".join(sorted(listed)[:10]) or "none"
                return f"the upstream has no model {self._model!r}; it lists {has}"
            self._is_known = status == 200
        return ""

    async def _ask_chat(self, body: dict[str, Any]) -> tuple[int, bytes]:
        """Send a request for a chat. Without a response, the status is 0: the next probe will see why."""
        status, answer = await self._upstream.ask("chat/completions", body)
        return (0, answer) if isinstance(status, str) else (status, answer)


def read_list(body: bytes) -> dict[str, int | None] | None:
    """Return the names in a list of models, each with the longest job if it has one; None if it is no list."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    models = value.get("data") if isinstance(value, dict) else None
    if not isinstance(models, list):
        return None
    named = [model for model in models if isinstance(model, dict) and isinstance(model.get("id"), str)]
    return {model["id"]: _length(model) for model in named}


def lacks_model(status: int, body: bytes, model: str) -> bool:
    """Whether a response says that there is no such model: its error has the code for that, or names the model."""
    if status not in {400, 404}:
        return False
    text = body.decode(errors="replace")
    names_it = re.search(rf"(?<![\w.-]){re.escape(model)}(?![\w-])", text)
    return "model_not_found" in text or bool(names_it and _UNKNOWN_MODEL.search(text))


def _length(model: dict[str, Any]) -> int | None:
    for path in _LENGTHS:
        found: Any = model
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        if type(found) is int and 0 < found < _MAX_LENGTH:
            return found
    return None

"""Give an error or a refusal the shape of Anthropic's API, beside the fields that it has on every route."""

from typing import Any

#: The group of routes that follow Anthropic's API, by the name of its blueprint.
ROUTES = "messages"
_PATH = "/v1/messages"
#: Anthropic's type of an error, by its HTTP status. Other statuses below 500 are those of invalid requests.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "api_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def follows_anthropic(blueprint: str | None, path: str) -> bool:
    """Return whether a request is for Anthropic's API: by the blueprint of its route, or by its path if it has none."""
    return blueprint == ROUTES or (blueprint is None and (path == _PATH or path.startswith(f"{_PATH}/")))


def anthropic_error(body: dict[str, Any], status: int, request_id: str) -> dict[str, Any]:
    """Return the body of an error or a refusal with Anthropic's fields: `type`, `error.type` and `request_id`."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error"} | body | {"error": body["error"] | {"type": kind}, "request_id": request_id}

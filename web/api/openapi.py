"""What /openapi.json says beyond routes and bodies: parameters, the shapes of answers, how to show a key."""

from typing import Any

from apiflask import APIFlask
from pydantic.json_schema import models_json_schema

from web.api import response_models

Parameter = dict[str, Any]

_REF = "#/components/schemas/{model}"


def _query(name: str, kind: str, description: str) -> Parameter:
    return {"in": "query", "name": name, "required": False, "schema": {"type": kind}, "description": description}


def _header(name: str, kind: str, description: str) -> Parameter:
    return {"in": "header", "name": name, "required": False, "schema": {"type": kind}, "description": description}


_WAIT = [
    _query("wait_ms", "integer", "hold the call until the job has ended, at most 60000"),
    _header("Prefer", "string", "wait=S: the same, in seconds"),
]
_PATIENCE = [
    _header("X-Deadline-Ms", "integer", "patience, where the body names none"),
    _header("X-Attempt", "integer", "how often this was tried before"),
]
_TENANT = _header("X-Tenant", "string", "the tenant: where auth is open, and for keys with act_as")

_PARAMETERS: dict[tuple[str, str], list[Parameter]] = {
    ("post", "/v1/jobs"): [
        *_WAIT,
        *_PATIENCE,
        _header("Idempotency-Key", "string", "the same key and body answer the same job while it can be read"),
    ],
    ("post", "/v1/quote"): [_PATIENCE[0]],
    ("get", "/v1/jobs"): [
        _query("status", "string", "only jobs of this status"),
        _query("limit", "integer", "1 to 100, default 20"),
        _query("cursor", "string", "as the page before said"),
    ],
    ("get", "/v1/jobs/{job_id}"): _WAIT,
    ("delete", "/v1/jobs/{job_id}"): [_query("erase", "integer", "1: remove an ended job's text")],
    ("get", "/v1/jobs/{job_id}/events"): [
        _header("Last-Event-ID", "string", "go on after this event"),
        _query("last_event_id", "string", "the same, for those who cannot set headers"),
        _query("ticket", "string", "of urls.events_signed, in place of a key"),
    ],
    ("post", "/v1/chat/completions"): _PATIENCE,
    ("post", "/v1/completions"): _PATIENCE,
    ("post", "/v1/responses"): [
        *_PATIENCE,
        _header("Idempotency-Key", "string", "with background: as on /v1/jobs"),
    ],
    ("get", "/v1/responses/{response_id}"): [
        _query("stream", "boolean", "tell its events"),
        _query("starting_after", "integer", "those after this sequence number"),
        _query("include", "string", "message.output_text.logprobs, for a response that was made with them"),
    ],
}

#: The shape of each route's good answers; what streams or is text has none.
_ANSWERS: dict[tuple[str, str], type[response_models.ResponseModel]] = {
    ("post", "/v1/jobs"): response_models.Job,
    ("get", "/v1/jobs"): response_models.JobPage,
    ("get", "/v1/jobs/{job_id}"): response_models.Job,
    ("delete", "/v1/jobs/{job_id}"): response_models.Job,
    ("post", "/v1/quote"): response_models.Quote,
    ("get", "/v1/queue"): response_models.OwnQueue,
    ("get", "/v1/models"): response_models.ModelList,
    ("get", "/v1/models/{name}"): response_models.Model,
    ("post", "/v1/chat/completions"): response_models.Completion,
    ("post", "/v1/completions"): response_models.Completion,
    ("post", "/v1/embeddings"): response_models.Embeddings,
    ("post", "/v1/responses"): response_models.Response,
    ("get", "/v1/responses/{response_id}"): response_models.Response,
    ("post", "/v1/responses/{response_id}/cancel"): response_models.Response,
    ("get", "/health"): response_models.Health,
    ("get", "/health/ready"): response_models.Ready,
}

#: Whose good answers are server-sent events, where these are asked for or are all there is.
_STREAMS = {
    ("get", "/v1/jobs/{job_id}/events"),
    ("post", "/v1/chat/completions"),
    ("post", "/v1/completions"),
    ("post", "/v1/responses"),
    ("get", "/v1/responses/{response_id}"),
}

#: One event of a stream; comments come between.
_EVENT = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("event", "data", "id")},
    "required": ["data"],
}

#: Answers that any route under /v1 may give, whatever it is for.
_EVERYWHERE = {
    "400": "Nothing that could be read",
    "401": "No key, or none that is known",
    "403": "The tenant is disabled, or is another's",
    "414": "The request line is too long",
    "421": "Another Host than those that are served",
    "422": "A field, header or parameter does not fit",
    "431": "A header is too long",
    "503": "Yield: come back after the hint",
}
#: Those that take a request for generation, too.
_POSTED = {
    "400": "Not JSON, or nothing that could be served",
    "404": "No such model, or no such job",
    "413": "The body is too large",
    "415": "The body is not application/json",
    "429": "Yield, for the tenant's own rate: come back after the hint",
}
#: How a job ended, where ends are errors.
_ENDS = {"409": "Canceled by another hand", "500": "Failed", "504": "Expired"}
_ENDS_ARE_ERRORS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")


def install(app: APIFlask) -> None:
    """Complete the description that APIFlask makes of the routes."""

    @app.spec_processor
    def complete(spec: Any) -> Any:
        _, defined = models_json_schema([(shape, "serialization") for shape in response_models.ALL], ref_template=_REF)
        components = spec.setdefault("components", {})
        components.setdefault("schemas", {}).update(defined["$defs"])
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path, operations in spec["paths"].items():
            for method, operation in operations.items():
                _complete(operation, method, path)
        components["schemas"].pop("HTTPError", None)
        return spec


def _complete(operation: dict[str, Any], method: str, path: str) -> None:
    if path.startswith("/v1/"):
        operation["security"] = [{"key": []}]
        operation.setdefault("parameters", []).extend([*_PARAMETERS.get((method, path), []), _TENANT])
        also = _EVERYWHERE | (_POSTED if method == "post" else {}) | (_ENDS if path in _ENDS_ARE_ERRORS else {})
        operation["responses"] = {code: {"description": text} for code, text in also.items()} | operation["responses"]
    elif path == "/metrics/fleet":
        operation["security"] = [{"key": []}]
        operation["responses"] |= {
            "401": {"description": "Not the admin key"},
            "503": {"description": "The store is away"},
        }
    good = _ANSWERS.get((method, path))
    for status, response in operation["responses"].items():
        shape = good if status.startswith("2") else response_models.Error
        if status in {"429", "503"}:
            shape = response_models.Ready if path == "/health/ready" else response_models.Yield
        response.pop("content", None)
        if shape is not None:
            reference = {"$ref": _REF.format(model=shape.__name__)}
            response["content"] = {"application/json": {"schema": reference}}
        if (method, path) in _STREAMS and status == "200":
            response.setdefault("content", {})["text/event-stream"] = {"schema": _EVENT}

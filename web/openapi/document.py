"""Add to /openapi.json what APIFlask cannot derive from the routes: parameters, response models and authentication."""

from typing import Any

from apiflask import APIFlask
from pydantic.json_schema import models_json_schema

from shared.history.report import SPANS
from shared.jobs.states import JobState
from shared.retrieval.file_records import FILE_STATES
from shared.store.job_list import MAX_LISTED
from web.http.api_errors import is_api_path
from web.openapi import compatible_models, operator_models, response_models, vector_store_models
from web.openapi.texts import with_texts
from web.request.body import MAX_ATTEMPT
from web.retrieval.bodies import DocumentBody

Parameter = dict[str, Any]

_REF = "#/components/schemas/{model}"


def _query(name: str, kind: str, description: str, **bounds: Any) -> Parameter:
    schema = {"type": kind} | bounds
    return {"in": "query", "name": name, "required": False, "schema": schema, "description": description}


def _header(name: str, kind: str, description: str, **bounds: Any) -> Parameter:
    return _query(name, kind, description, **bounds) | {"in": "header"}


_WAIT = [
    _query(
        "wait_ms", "integer", "wait up to this many ms for the job to end; at most 60000", minimum=0, maximum=86_400_000
    ),
    _header("Prefer", "string", "wait=S: the same as wait_ms, in seconds"),
]
_DEADLINE_AND_ATTEMPT = [
    _header("X-Deadline-Ms", "integer", "the deadline in ms from now; ignored if the body names one", minimum=1),
    _header("X-Attempt", "integer", "how often this request was sent before", minimum=0, maximum=MAX_ATTEMPT),
]
_TENANT = _header(
    "X-Tenant",
    "string",
    "the tenant; allowed only if auth is open or the API key has act_as",
    pattern="^[A-Za-z0-9_-]{1,64}$",
)


def _idempotency_key(description: str) -> Parameter:
    return _header("Idempotency-Key", "string", description, minLength=1, maxLength=256)


_DOCUMENT_PATH = "/v1/collections/{name}/documents/{document_id}"
_AFTER = _query("after", "string", "the id behind which the page begins", minLength=1, maxLength=100)
_LIMIT = _query("limit", "integer", "how many items to return; at most 100 are returned", minimum=1, maximum=99_999)
_STORE_PAGE = [
    _LIMIT,
    _query("after", "string", "the id behind which the page begins", minLength=1, maxLength=256),
    _query("before", "string", "the id that follows the page", minLength=1, maxLength=256),
    _query("order", "string", "by creation time; the default is desc", enum=["asc", "desc"]),
]
_FILE_STATE = _query("filter", "string", "return only files in this state", enum=list(FILE_STATES))
_JOB_FILTER = [
    _query("tenant", "string", "only jobs of this tenant"),
    _query("key", "string", "only jobs of the API key with this label"),
    _query("state", "string", "only jobs in these states, comma-separated; also `inflight` and `ended`"),
    _query("model", "string", "only jobs of this model's pool"),
    _query("reason", "string", "only jobs with this error code or, without an error, this finish_reason"),
    _query("since", "string", "only jobs admitted then or later, such as 15m (ago), 14:00 or 2026-11-28T14:00 (UTC)"),
    _query("until", "string", "only jobs admitted then or before"),
    _query("id", "string", "only jobs whose ids begin with this text"),
]
_CELL = _query("cell", "string", "only this cell of the deployment, if it has several; by default all", maxLength=16)
#: With several cells, a cursor names each cell with its place.
_CURSOR = _query("cursor", "string", "the `cursor` of the previous answer", minLength=1, maxLength=8_192)

_PARAMETERS: dict[tuple[str, str], list[Parameter]] = {
    ("get", "/v1/batches"): [_LIMIT, _AFTER],
    ("get", "/v1/files"): [
        _LIMIT,
        _AFTER,
        _query("order", "string", "by creation time; the default is desc", enum=["asc", "desc"]),
        _query(
            "purpose",
            "string",
            "return only such files of the page",
            enum=["batch", "batch_output", "assistants", "user_data"],
        ),
    ],
    ("get", "/v1/vector_stores"): _STORE_PAGE,
    ("get", "/v1/vector_stores/{store_id}/files"): [*_STORE_PAGE, _FILE_STATE],
    ("get", "/v1/vector_stores/{store_id}/file_batches/{batch_id}/files"): [*_STORE_PAGE, _FILE_STATE],
    ("get", "/v1/collections/{name}/documents"): [
        _LIMIT,
        _query("after", "string", "the id behind which the page begins", minLength=1, maxLength=256),
    ],
    ("put", _DOCUMENT_PATH): [
        _query("filename", "string", "the name of the file in the body; its end says what the file is", maxLength=256),
        _query("metadata", "string", "a JSON object: the metadata of the file in the body"),
        _DEADLINE_AND_ATTEMPT[0],
    ],
    ("post", "/v1/jobs"): [
        *_WAIT,
        *_DEADLINE_AND_ATTEMPT,
        _idempotency_key("a later request with the same key and body returns the same job while it can be read"),
    ],
    ("post", "/v1/jobs/{job_id}/again"): [
        _idempotency_key("a later request with the same key returns the same new job while it can be read")
    ],
    ("post", "/v1/quote"): [_DEADLINE_AND_ATTEMPT[0]],
    ("get", "/v1/jobs"): [
        _query("status", "string", "return only jobs with this status", enum=[*JobState]),
        _query("limit", "integer", "how many jobs to return; the default is 20", minimum=1, maximum=100),
        _query("cursor", "string", "the `cursor` of the previous page", minLength=1, maxLength=64),
    ],
    ("get", "/v1/admin/jobs"): [
        *_JOB_FILTER,
        _CELL,
        _query("limit", "integer", "how many jobs to return at most; the default is 50", minimum=1, maximum=MAX_LISTED),
        _CURSOR,
    ],
    ("delete", "/v1/admin/jobs"): [*_JOB_FILTER, _CELL, _CURSOR],
    ("get", "/v1/admin/history"): [
        _query("cell", "string", "the cell to ask, if there are several; the default is the first", maxLength=16),
        _query(
            "at", "string", "the time in question: 15m (ago), 14:05 (UTC) or 2026-11-28T14:05:30Z; the default is now"
        ),
        _query("span", "string", "how much time to list, around `at`; the default is 1h", enum=[*SPANS]),
        _query("tenant", "string", "only this tenant", pattern="^[A-Za-z0-9_-]{1,64}$"),
        _query("model", "string", "only this model; not together with `tenant`", maxLength=256),
    ],
    ("get", "/v1/usage"): [
        _query("by", "string", "what to list: day, tenant, key and model, comma-separated; the default is day,model"),
        _query("from", "string", "the first day, such as 2026-11-01; the default is the first of the last day's month"),
        _query("to", "string", "the last day, at most 30 days later; the default is today"),
        _query("all", "integer", "1: the usage of all tenants, for operators"),
    ],
    ("get", "/health/ready"): [
        _query("model", "string", "the name of a model, an alias or a route: whether a worker claims its jobs"),
        _query("retrieval", "string", "any value: whether the database of collections is ready too"),
    ],
    ("get", "/v1/jobs/{job_id}"): _WAIT,
    ("delete", "/v1/jobs/{job_id}"): [_query("erase", "integer", "1: remove the text of a job that has ended")],
    ("get", "/v1/jobs/{job_id}/events"): [
        _header("Last-Event-ID", "string", "return only the events after this one"),
        _query("last_event_id", "string", "the same as Last-Event-ID, for clients that cannot set headers"),
        _query("ticket", "string", "the ticket from urls.events_signed, instead of an API key"),
    ],
    ("post", "/v1/chat/completions"): _DEADLINE_AND_ATTEMPT,
    ("post", "/v1/completions"): _DEADLINE_AND_ATTEMPT,
    ("post", "/v1/messages"): _DEADLINE_AND_ATTEMPT,
    ("post", "/v1/responses"): [
        *_DEADLINE_AND_ATTEMPT,
        _idempotency_key("the same as on /v1/jobs; requires background"),
    ],
    ("get", "/v1/responses/{response_id}"): [
        _query("stream", "boolean", "true: stream the events of the response"),
        _query("starting_after", "integer", "stream only the events after this sequence number", minimum=0),
        _query("include", "string", "message.output_text.logprobs, if the response was created with logprobs"),
    ],
}

#: The model of each route's JSON response with a 2xx status. Routes that return only events or text are not listed.
_SUCCESS_MODELS: dict[tuple[str, str], type[response_models.ResponseModel]] = {
    ("post", "/v1/jobs"): response_models.Job,
    ("get", "/v1/jobs"): response_models.JobPage,
    ("get", "/v1/jobs/{job_id}"): response_models.Job,
    ("delete", "/v1/jobs/{job_id}"): response_models.Job,
    ("post", "/v1/jobs/{job_id}/again"): response_models.Job,
    ("post", "/v1/quote"): response_models.Quote,
    ("get", "/v1/queue"): response_models.OwnQueue,
    ("get", "/v1/usage"): response_models.UsageReport,
    ("get", "/v1/models"): compatible_models.ModelList,
    ("get", "/v1/models/{name}"): compatible_models.Model,
    ("post", "/v1/chat/completions"): compatible_models.Completion,
    ("post", "/v1/completions"): compatible_models.Completion,
    ("post", "/v1/messages"): compatible_models.Message,
    ("post", "/v1/messages/count_tokens"): compatible_models.TokenCount,
    ("post", "/v1/embeddings"): compatible_models.Embeddings,
    ("post", "/v1/files"): compatible_models.File,
    ("get", "/v1/files"): compatible_models.FileList,
    ("get", "/v1/files/{file_id}"): compatible_models.File,
    ("delete", "/v1/files/{file_id}"): compatible_models.FileDeleted,
    ("delete", "/v1/responses/{response_id}"): compatible_models.ResponseDeleted,
    ("post", "/v1/batches"): compatible_models.Batch,
    ("get", "/v1/batches"): compatible_models.BatchList,
    ("get", "/v1/batches/{batch_id}"): compatible_models.Batch,
    ("post", "/v1/batches/{batch_id}/cancel"): compatible_models.Batch,
    ("post", "/rerank"): compatible_models.Ranking,
    ("post", "/v1/rerank"): compatible_models.Ranking,
    ("post", "/v2/rerank"): compatible_models.Ranking,
    ("post", "/v1/responses"): compatible_models.Response,
    ("get", "/v1/responses/{response_id}"): compatible_models.Response,
    ("get", "/v1/responses/{response_id}/input_items"): compatible_models.InputItemList,
    ("post", "/v1/responses/input_tokens"): compatible_models.InputTokens,
    ("post", "/v1/responses/{response_id}/cancel"): compatible_models.Response,
    ("post", "/v1/collections"): response_models.Collection,
    ("get", "/v1/collections"): response_models.CollectionList,
    ("get", "/v1/collections/{name}"): response_models.Collection,
    ("delete", "/v1/collections/{name}"): response_models.CollectionDeleted,
    ("get", "/v1/collections/{name}/documents"): response_models.CollectionDocumentList,
    ("put", _DOCUMENT_PATH): response_models.LoadedDocument,
    ("get", _DOCUMENT_PATH): response_models.CollectionDocument,
    ("delete", _DOCUMENT_PATH): response_models.CollectionDocumentDeleted,
    ("post", "/v1/collections/{name}/search"): response_models.FoundPassages,
    **vector_store_models.SUCCESS_MODELS,
    **operator_models.SUCCESS_MODELS,
    ("get", "/health"): response_models.Health,
    ("get", "/health/ready"): response_models.Ready,
}

#: The routes that return server-sent events, always or on request.
_STREAMS = {
    ("get", "/v1/jobs/{job_id}/events"),
    ("post", "/v1/chat/completions"),
    ("post", "/v1/completions"),
    ("post", "/v1/messages"),
    ("post", "/v1/responses"),
    ("get", "/v1/responses/{response_id}"),
}

#: The schema of one server-sent event. A stream may contain comments between the events.
_EVENT = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("event", "data", "id")},
    "required": ["data"],
}

#: The body of an upload, as /openapi.json describes it.
_UPLOAD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": ["batch", "assistants", "user_data"]},
    },
    "required": ["file", "purpose"],
}
#: The responses of all routes under /v1.
_COMMON_RESPONSES = {
    "400": "The request could not be parsed",
    "401": "The API key is missing, unknown or expired",
    "403": "The tenant is disabled, or the API key may not act as this tenant",
    "414": "The request line is too long",
    "421": "The Host is not one that the door serves",
    "422": "A field, header or parameter is invalid; on OpenAI's and Anthropic's routes, which "
    "answer 400, only an Idempotency-Key",
    "431": "A header is too long",
    "503": "Yield: the job was refused; retry after the hint",
}
#: The additional responses of all POST routes under /v1.
_POST_RESPONSES = {
    "400": "The body is not JSON, or it uses something that is not supported",
    "404": "The model or the job does not exist",
    "413": "The body is too large",
    "415": "The body is not application/json, or it is compressed",
    "429": "Yield because of the tenant's own rate: retry after the hint",
}
#: The error responses for a job that did not succeed, on the routes that return an error in this case.
_JOB_END_RESPONSES = {
    "409": "The job was canceled by another request",
    "500": "The job failed",
    "504": "The job expired",
}
_ROUTES_WITH_JOB_END_ERRORS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/v1/responses",
)
#: The routes of Anthropic's API.
_ANTHROPIC = frozenset({"/v1/messages", "/v1/messages/count_tokens"})
#: The models of an error and of a refusal, on the routes where they have more fields than elsewhere.
_ERRORS = dict.fromkeys(_ANTHROPIC, (compatible_models.MessageError, compatible_models.MessageYield))
_MODELS: set[type[response_models.ResponseModel]] = {
    response_models.Error,
    response_models.Yield,
    *_SUCCESS_MODELS.values(),
    *_ERRORS[min(_ANTHROPIC)],
}


#: The bodies that APIFlask does not know, by the types of their contents.
_FILE = {"schema": {"type": "string", "format": "binary"}}
_CONTENTS: dict[tuple[str, str], dict[str, Any]] = {
    ("post", "/v1/files"): {"multipart/form-data": {"schema": _UPLOAD}},
    ("put", _DOCUMENT_PATH): {
        "application/json": {"schema": DocumentBody.model_json_schema(ref_template=_REF)},
        **dict.fromkeys(("text/plain", "text/markdown", "text/html", "application/pdf"), _FILE),
    },
}


def install(app: APIFlask) -> None:
    """Add a processor that completes the OpenAPI description that APIFlask generates from the routes."""

    @app.spec_processor
    def complete(spec: Any) -> Any:
        _, defined = models_json_schema([(model, "serialization") for model in _MODELS], ref_template=_REF)
        components = spec.setdefault("components", {})
        components.setdefault("schemas", {}).update(defined["$defs"])
        components["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        for path, operations in spec["paths"].items():
            for method, operation in operations.items():
                _complete(operation, method, path)
        components["schemas"].pop("HTTPError", None)
        with_texts(spec)
        return spec


def _complete(operation: dict[str, Any], method: str, path: str) -> None:
    # Both are from the docstring of the route's function.
    operation["summary"] = operation["summary"].rstrip(".")
    if text := operation.get("description"):
        operation["description"] = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
    tenant = [_TENANT] if is_api_path(path) else []
    operation.setdefault("parameters", []).extend([*_PARAMETERS.get((method, path), []), *tenant])
    if is_api_path(path):
        operation["security"] = [{"key": []}, {"x-api-key": []}] if path in _ANTHROPIC else [{"key": []}]
        added = _COMMON_RESPONSES.copy()
        added |= _POST_RESPONSES if method == "post" else {}
        added |= _JOB_END_RESPONSES if path in _ROUTES_WITH_JOB_END_ERRORS else {}
        operation["responses"] = {code: {"description": text} for code, text in added.items()} | operation["responses"]
        if (content := _CONTENTS.get((method, path))) is not None:
            operation["requestBody"] = {"required": True, "content": content}
    elif path == "/metrics/fleet":
        operation["security"] = [{"key": []}]
        operation["responses"] |= {
            "401": {"description": "The admin key is missing or wrong"},
            "503": {"description": "The store does not answer"},
        }
    success_model = _SUCCESS_MODELS.get((method, path))
    error_model, yield_model = _ERRORS.get(path, (response_models.Error, response_models.Yield))
    for status, response in operation["responses"].items():
        model = success_model if status.startswith("2") else error_model
        if status in {"429", "503"}:
            model = response_models.Ready if path == "/health/ready" else yield_model
        response.pop("content", None)
        if model is not None:
            reference = {"$ref": _REF.format(model=model.__name__)}
            response["content"] = {"application/json": {"schema": reference}}
        if path == "/v1/files/{file_id}/content" and status == "200":
            response["content"] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        if (method, path) in _STREAMS and status == "200":
            response.setdefault("content", {})["text/event-stream"] = {"schema": _EVENT}

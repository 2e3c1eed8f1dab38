"""`/openapi.json` and `/docs`: the OpenAPI document, and an HTML page about it without foreign resources.

Anybody may request them as often as they like. Making them takes a tenth of a second, so each process makes them once.
"""

import json
from collections.abc import Callable
from typing import Any

from apiflask import APIBlueprint, APIFlask
from flask import Response, current_app, render_template

bp = APIBlueprint("pages", __name__, enable_openapi=False)

#: A page consists of text and an inline style, so scripts and all other resources are forbidden.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


#: The key of the finished pages in the dict `Flask.extensions`, by name.
_FINISHED = "penstock_pages"


@bp.get("/openapi.json")
def openapi_json() -> Response:
    """Return the OpenAPI document of all routes."""
    text = _made_once("openapi.json", lambda spec: json.dumps(spec, separators=(",", ":")) + "\n")
    return Response(text, mimetype="application/json")


@bp.get("/docs")
def docs() -> Response:
    """Return an HTML page that lists every route and the fields of its request body."""
    text = _made_once("docs", lambda spec: render_template("docs.html", spec=spec, groups=operations_by_tag(spec)))
    response = Response(text, mimetype="text/html")
    response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    return response


def _made_once(name: str, make: Callable[[dict[str, Any]], str]) -> str:
    """Return the text that `make` returns for the OpenAPI document. Only the first call for this app calls `make`."""
    app = current_app
    assert isinstance(app, APIFlask)  # noqa: S101 - for mypy: create_app makes an APIFlask
    finished: dict[str, str] = app.extensions.setdefault(_FINISHED, {})
    if name not in finished:
        spec: Any = app.spec
        finished[name] = make(spec)
    return finished[name]


def operations_by_tag(spec: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the operations of an OpenAPI spec by tag.

    Each operation is extended by its method, its path and the fields of its request body.
    """
    schemas = spec.get("components", {}).get("schemas", {})
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, operations in spec.get("paths", {}).items():
        for method, operation in operations.items():
            if isinstance(operation, dict) and "responses" in operation:
                described = operation | {"method": method.upper(), "path": path, "fields": _fields(operation, schemas)}
                groups.setdefault(operation.get("tags", ["Other"])[0], []).append(described)
    return groups


def _fields(operation: dict[str, Any], schemas: dict[str, Any]) -> list[dict[str, Any]]:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    schema = schemas.get(body.get("$ref", "").rpartition("/")[2], {})
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "type": _type(field),
            "required": name in required,
            "default": field.get("default"),
            "range": _range(field),
            "description": field.get("description", ""),
        }
        for name, field in schema.get("properties", {}).items()
    ]


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        return str(field["$ref"]).rpartition(".")[2] or str(field["$ref"]).rpartition("/")[2]
    if "anyOf" in field:
        return " or ".join(_type(choice) for choice in field["anyOf"] if choice.get("type") != "null")
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    return str(field.get("type", "any"))


def _range(field: dict[str, Any]) -> str:
    for choice in [field, *field.get("anyOf", [])]:
        low = choice.get("minimum", choice.get("exclusiveMinimum"))
        high = choice.get("maximum", choice.get("exclusiveMaximum"))
        if low is not None or high is not None:
            return f"{'' if low is None else f'{low:g}'} … {'' if high is None else f'{high:g}'}"
    return ""

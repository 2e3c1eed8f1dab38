"""`/openapi.json` and `/docs`: the OpenAPI document, and an API reference about it without foreign resources.

Anybody may request them as often as they like. Making the document takes a tenth of a second, so each process makes it
once.
"""

import gzip
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from apiflask import APIBlueprint, APIFlask
from flask import Response, current_app, render_template, request

bp = APIBlueprint("pages", __name__, enable_openapi=False)

#: The front page consists of text and an inline style, so scripts and all other resources are forbidden.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: The API reference is a script that adds styles to the page and sends requests to this door, and to no other server.
_REFERENCE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; img-src 'self' data:; "
    "font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SCRIPTS = Path(__file__).parents[1] / "static" / "scalar"
#: The scripts' URLs contain a digest of their content.
_SCRIPT_CACHING = "public, max-age=31536000, immutable"
#: The key of the finished OpenAPI document in the dict `Flask.extensions`.
_FINISHED = "penstock_openapi_json"


@bp.get("/openapi.json")
def openapi_json() -> Response:
    """Return the OpenAPI document of all routes."""
    app = current_app
    assert isinstance(app, APIFlask)  # noqa: S101 - for mypy: create_app makes an APIFlask
    if _FINISHED not in app.extensions:
        spec: Any = app.spec
        app.extensions[_FINISHED] = json.dumps(spec, separators=(",", ":")) + "\n"
    return Response(app.extensions[_FINISHED], mimetype="application/json")


@bp.get("/docs")
def docs() -> Response:
    """Return the API reference, a page that shows `/openapi.json` and can send requests to this door."""
    page = render_template("docs.html", title=current_app.title, digest=_digest())  # type: ignore[attr-defined]  # APIFlask
    return Response(page, mimetype="text/html", headers={"Content-Security-Policy": _REFERENCE_POLICY})


@bp.get("/docs/start.js")
def start_script() -> Response:
    """Return the script that starts the API reference."""
    return Response(_start_script(), mimetype="text/javascript", headers={"Cache-Control": _SCRIPT_CACHING})


@bp.get("/docs/api-reference.js")
def reference_script() -> Response:
    """Return the script of the API reference: 1.3 MB if the client accepts gzip, else 4.4 MB."""
    headers = {"Cache-Control": _SCRIPT_CACHING, "Vary": "Accept-Encoding"}
    if not request.accept_encodings["gzip"]:
        return Response(_plain_reference_script(), mimetype="text/javascript", headers=headers)
    headers |= {"Content-Encoding": "gzip"}
    return Response(_compressed_reference_script(), mimetype="text/javascript", headers=headers)


@cache
def _start_script() -> bytes:
    return (_SCRIPTS / "start.js").read_bytes()


@cache
def _compressed_reference_script() -> bytes:
    return (_SCRIPTS / "api-reference.js.gz").read_bytes()


@cache
def _plain_reference_script() -> bytes:
    return gzip.decompress(_compressed_reference_script())


@cache
def _digest() -> str:
    return hashlib.sha256(_start_script() + _compressed_reference_script()).hexdigest()[:16]

"""The pages for everybody: `/`, with examples that work from the client's address, `/openapi.json` and `/docs`.

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

from shared.errors import StoreUnavailable
from shared.examples import curl_example, openai_example
from shared.version import package_version
from web.http.allowed_names import host_name
from web.runtime.context import DoorContext
from web.runtime.current import current_context

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


#: The address of the dashboard, if this door serves one.
_DASHBOARD = "/rq/"
#: The model in the examples if no name can be shown.
_ANY_MODEL = "MODEL"
_LINKS = {
    "/docs": "every route of the HTTP API, with examples to try",
    "/openapi.json": "the same, for programs",
    "/v1/models": "the models that you may use",
    "/health/ready": "whether jobs are admitted at present",
    "/console": "tenants, workers and jobs live, for operators",
    "/metrics": "metrics of this host's door, for Prometheus",
}


@bp.get("/")
def front_page() -> Response:
    """Return a page for browsers, and plain text for other clients. No key is required.

    If API keys are required, the page names no models, because each key may be limited to some of them.
    """
    page = _content(current_context(), _client_url())
    html = request.accept_mimetypes.best_match(["text/plain", "text/html"], "text/plain") == "text/html"
    text = render_template("front_page.html" if html else "front_page.txt", **page)
    response = Response(text, mimetype="text/html" if html else "text/plain")
    response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    response.headers["Cache-Control"] = "no-store"
    response.vary.add("Accept")
    return response


@bp.get("/favicon.ico")
def icon() -> Response:
    """Return the icon, for which browsers ask at this path on pages that name none."""
    return current_app.send_static_file("console/icon.svg")


def _client_url() -> str:
    """Return the URL at which the client reached the door.

    A proxy passes it in two headers. A client that writes them itself changes only the page that it gets.
    """
    host = request.headers.get("X-Forwarded-Host", "")
    if not host_name(host):
        return request.host_url.rstrip("/")
    scheme = request.headers.get("X-Forwarded-Proto", "")
    return f"{scheme if scheme in {'http', 'https'} else request.scheme}://{host}"


def _content(context: DoorContext, url: str) -> dict[str, Any]:
    needs_key = context.settings.auth == "required"
    names, generating = [], []
    try:
        directory = context.pools.directory()
        names = [] if needs_key else context.pools.visible_names(None)
        generating = [name for name in directory.live if not directory.models[name].pooling]
        fault = context.write_fault.get()
    except StoreUnavailable as error:
        fault = error.fault
    model = generating[0] if generating and not needs_key else _ANY_MODEL
    # If several models are live, a job has to name one.
    named = model if needs_key or len(names) > 1 else ""
    links = dict(_LINKS)
    if any(rule.rule == _DASHBOARD for rule in current_app.url_map.iter_rules()):
        links[_DASHBOARD] = "queues and jobs, for operators"
    return {
        "version": package_version(),
        "url": url,
        "names": names,
        "problem": "" if fault is None else f"The store {fault.says}, so no job is admitted.",
        "needs_key": needs_key,
        "curl": curl_example(url, needs_key=needs_key, model=named),
        "python": openai_example(url, needs_key=needs_key, model=model),
        "links": links,
    }

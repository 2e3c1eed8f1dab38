"""`/`: what this door serves, examples of requests that work from the client's address, and links."""

from typing import Any

from apiflask import APIBlueprint
from flask import Response, current_app, render_template, request

from shared.errors import StoreUnavailable
from shared.examples import curl_example, openai_example
from shared.version import package_version
from web.http.allowed_names import host_name
from web.routes.pages import CONTENT_SECURITY_POLICY
from web.runtime.context import DoorContext
from web.runtime.current import current_context

bp = APIBlueprint("front_page", __name__, enable_openapi=False)

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
    problem, names, generating = "", [], []
    try:
        directory = context.pools.directory()
        names = [] if needs_key else context.pools.visible_names(None)
        generating = [name for name in directory.live if not directory.models[name].pooling]
    except StoreUnavailable:
        problem = "The store does not answer at present, so no job is admitted."
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
        "problem": problem,
        "needs_key": needs_key,
        "curl": curl_example(url, needs_key=needs_key, model=named),
        "python": openai_example(url, needs_key=needs_key, model=model),
        "links": links,
    }

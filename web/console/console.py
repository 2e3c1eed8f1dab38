"""Serve the console at /console: its page, and the routes that the page calls, for operators only."""

from functools import partial

from apiflask import APIFlask
from flask import redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from shared.clock import Clock
from shared.version import package_version
from web.console import (  # noqa: F401 - the modules add their routes
    actions,
    audit,
    cells,
    collections,
    groups,
    history,
    job_list,
    jobs,
    models,
    panels,
    playground,
    routes,
    tenant_changes,
    usage,
)
from web.console.feed import EXTENSION_NAME, ConsoleFeeds, current_feed
from web.console.guard import bp, not_found, page
from web.console.reads import read_counts
from web.http.api_errors import quoted
from web.runtime.current import current_context

#: A search shows at most this many tenants.
_MAX_FOUND = 20


def register_console(app: APIFlask, clock: Clock) -> None:
    """Add the console to the door's app. It reads nothing from the store until somebody opens it."""
    panels.install(app.jinja_env)
    app.extensions[EXTENSION_NAME] = ConsoleFeeds(clock, partial(panels.render_panels, app.jinja_env))
    app.extensions[cells.EXTENSION_NAME] = cells.CellRates(clock)
    app.register_blueprint(bp)


@page("")
def board_page() -> str:
    """Return the console, with the panels as they were in the last second if another one is open."""
    context = current_context()
    return render_template(
        "console/page.html",
        panels=current_feed().panels(),
        version=package_version(),
        is_open=context.settings.auth == "open",
    )


@page("/")
def board_page_with_slash() -> Response:
    """Lead to the console, for people who write its address with a slash."""
    return redirect(url_for("console.board_page"))


@page("/<path:rest>")
def unknown_page(rest: str) -> tuple[str, int]:
    """Return a page that leads back to the others, for an address of the console that none has."""
    return not_found(f"no page {quoted(f'/console/{rest}')} in the console", "The links above lead to its pages.")


@bp.get("/find-tenants")
def find_tenants() -> str:
    """Return the tenants whose names contain the text `q`, the first ones by name."""
    wanted = request.args.get("q", "")[:64].strip()
    facts = current_feed().tenant_facts()
    names = [name for name in facts.names if wanted.lower() in name.lower()] if wanted else []
    shown = names[:_MAX_FOUND]
    counts = read_counts(current_context(), shown)
    return render_template(
        "console/found.html", wanted=wanted, names=shown, more=len(names) - len(shown), facts=facts, counts=counts
    )

"""Check each request to the console: who sent it, and that a page of this console sent it; and protect its pages."""

import hmac
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlencode

import redis
from apiflask import APIBlueprint
from flask import Response, current_app, render_template, request

from web.http.api_errors import ApiError
from web.request.caller import acting_admin, is_same_origin, require_admin
from web.runtime.asked_cells import asked_cells
from web.runtime.current import current_context, use_context
from web.runtime.ticket_signer import read_secret, sign

#: The header in which the scripts of a page send its token. A form of another site cannot send a header of its own.
TOKEN_HEADER = "X-Console-Token"  # noqa: S105 - the name of a header

#: The header in which a page about one cell names it when a button is pressed.
CELL_HEADER = "X-Console-Cell"

#: All scripts, styles and connections are those of this door. No style and no script is inside a page.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)


bp = APIBlueprint("console", __name__, url_prefix="/console", enable_openapi=False)

#: The endpoints of the pages. A link to another route, such as one in a window that a foreign page opens, could take
#: the places of viewers.
_pages: set[str] = set()
_View = TypeVar("_View", bound=Callable[..., Any])


def page(path: str) -> Callable[[_View], _View]:
    """Add the route of a page, to which other sites may link. Its template extends `console/shell.html`."""

    def decorate(view: _View) -> _View:
        _pages.add(f"{bp.name}.{view.__name__}")
        bp.add_url_rule(path, view.__name__, view, methods=["GET"])
        return view

    return decorate


@bp.context_processor
def _shell_values() -> dict[str, Any]:
    """Return what the shell of each page needs. Only a page calls `page_token`, which reads the store."""
    context = current_context()
    return {
        "page_token": page_token,
        "cells": _cells(),
        "first_cell": context.cells.first.cell,
        "cell_name": "" if context.cells.directory is None else context.cell,
        "has_collections": context.database is not None,
        "has_dashboard": any(rule.rule == "/rq/" for rule in current_app.url_map.iter_rules()),
    }


def not_found(what: str, hint: str = "The name may be wrong.") -> tuple[str, int]:
    """Return a page of the console that says what does not exist, such as `no job 'x'`, and the status 404."""
    return render_template("console/not_found.html", message=what, hint=hint), 404


@bp.before_request
def check() -> None:
    """Check who sent a request to the console, and that a page of this console sent it."""
    require_admin()
    # A page of another origin may not read the console either. A link to a page of the console is no such read.
    if not _is_link_to_page() and not is_same_origin(request):
        raise ApiError("origin_not_allowed", "a page of another site may not read the console")
    _choose_cell(request.args.get("cell", ""))
    if request.method not in {"GET", "HEAD"} and not _is_valid_token(request.headers.get(TOKEN_HEADER, "")):
        message = "this page of the console is too old, or did not send the request: load the console again"
        raise ApiError("page_expired", message, param=TOKEN_HEADER)


@bp.after_request
def add_security_headers(response: Response) -> Response:
    """Protect the pages of the console."""
    response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    response.headers["Cache-Control"] = "no-store"
    return response


def page_token() -> str:
    """Return the token for a page of the operator who sent the current request. Raises StoreUnavailable."""
    return PageTokens(current_context().store.client).make(acting_admin().who)


def _choose_cell(cell: str) -> None:
    """Have the request use the cell that the address names; else the first one that answers.

    Raises ApiError (422) if there is no such cell, and StoreUnavailable.
    """
    cells = asked_cells(current_context(), cell)
    if cells.named:
        use_context(cells.ask_first(lambda one: None if cell else read_secret(one.store.client))[0])


def _cells() -> list[dict[str, Any]]:
    """Return the cells to choose from; without a directory, none."""
    context = current_context()
    if context.cells.directory is None:
        return []
    given = {name: value for name, value in request.args.items() if name not in {"cell", "cursor"}}
    return [
        {"name": one.cell, "query": urlencode(given | {"cell": one.cell}), "is_away": context.cells.is_away(one)}
        for one in context.cells.all()
    ]


def _is_valid_token(token: str) -> bool:
    """Return whether a cell that answers has the secret of the token. Raises StoreUnavailable if none does."""
    read = asked_cells(current_context()).ask
    return any(read(lambda one: PageTokens(one.store.client).is_valid(token, acting_admin().who)).values())


def _is_link_to_page() -> bool:
    """Return whether the browser says that somebody follows a link to a page, which it opens in a tab or a window."""
    said = request.headers
    is_link = said.get("Sec-Fetch-Mode") == "navigate" and said.get("Sec-Fetch-Dest") == "document"
    return request.method == "GET" and is_link and request.endpoint in _pages


#: How long a page can be used before it has to be loaded again, in seconds: a working day.
VALID_S = 12 * 3_600
#: A token consists of its expiry time in seconds since the epoch, a dot, and a signature of 256 bits in base64.
_TOKEN = re.compile(r"(\d{1,12})\.([A-Za-z0-9_-]{43})\Z", re.ASCII)


class PageTokens:
    """Makes and checks the tokens of all door processes, which share a secret in the store.

    Methods raise StoreUnavailable if the store does not answer.
    """

    def __init__(self, client: redis.Redis, now_s: Callable[[], float] = time.time) -> None:
        """`now_s` returns the time in seconds since the epoch."""
        self._client, self._now_s = client, now_s

    def make(self, admin: str) -> str:
        """Return a token for the pages of the operator with this name."""
        expires_s = int(self._now_s()) + VALID_S
        return f"{expires_s}.{sign(read_secret(self._client), 'console', admin, expires_s)}"

    def is_valid(self, token: str, admin: str) -> bool:
        """Return whether the token was made for this operator and has not expired."""
        match = _TOKEN.match(token)
        if match is None:
            return False
        expires_s = int(match[1])
        return (
            hmac.compare_digest(sign(read_secret(self._client), "console", admin, expires_s), match[2])
            and self._now_s() < expires_s
        )

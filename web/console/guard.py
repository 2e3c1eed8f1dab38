"""Check each request to the console: who sent it, and that a page of this console sent it; and protect its pages."""

from apiflask import APIBlueprint
from flask import Response, request

from web.console.page_token import PageTokens
from web.http.api_errors import ApiError
from web.request.caller import acting_admin, is_same_origin, require_admin
from web.runtime.current import current_context

#: The header in which the scripts of a page send its token. A form of another site cannot send a header of its own.
TOKEN_HEADER = "X-Console-Token"  # noqa: S105 - the name of a header

#: All scripts, styles and connections are those of this door. No style and no script is inside a page.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)


#: The routes of the pages. A link to another route, such as one in a window that a foreign page opens, could take the
#: places of viewers.
_PAGES = frozenset({"console.page", "console.find_job", "console.job_page"})


def install(bp: APIBlueprint) -> None:
    """Check every request to the routes of this blueprint, and add security headers to the answers."""

    @bp.before_request
    def check() -> None:
        require_admin()
        # A page of another origin may not read the console either. A link to a page of the console is no such read.
        if not _is_link_to_page() and not is_same_origin(request):
            raise ApiError("origin_not_allowed", "a page of another site may not read the console")
        if request.method not in {"GET", "HEAD"}:
            tokens = PageTokens(current_context().store.client)
            if not tokens.is_valid(request.headers.get(TOKEN_HEADER, ""), acting_admin().who):
                message = "this page of the console is too old, or did not send the request: load the console again"
                raise ApiError("page_expired", message, param=TOKEN_HEADER)

    @bp.after_request
    def add_security_headers(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        response.headers["Cache-Control"] = "no-store"
        return response


def _is_link_to_page() -> bool:
    """Return whether the browser says that somebody follows a link to a page, which it opens in a tab or a window."""
    said = request.headers
    is_link = said.get("Sec-Fetch-Mode") == "navigate" and said.get("Sec-Fetch-Dest") == "document"
    return request.method == "GET" and is_link and request.endpoint in _PAGES

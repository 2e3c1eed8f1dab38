"""Count the open requests of tenants and of clients behind proxies, from their beginning until the answer is sent."""

from collections.abc import Callable
from functools import partial

from flask import Flask, Response, g

from web.http.connection_bounds import PROBE_PATHS
from web.jobs.callers import Caller
from web.request.caller import client_address
from web.runtime.current import current_context, current_request


def count_clients(app: Flask) -> None:
    """Count the requests of clients behind trusted proxies, and end all counts when the answer has been sent.

    The connections of all other clients are counted instead (web/server/worker.py).
    """

    @app.before_request
    def count_client() -> None:
        incoming, context = current_request(), current_context()
        if incoming.path in PROBE_PATHS or not context.trusted_proxies.trusts(incoming.remote_addr or ""):
            return
        address = context.trusted_proxies.limiting_key(client_address())
        if address is not None:
            call_when_answered(context.request_bounds.open_address_request(address))

    @app.after_request
    def hold_until_sent(response: Response) -> Response:
        # A file is passed to the server without its response, which is therefore never closed. Its counts end with the
        # request, below.
        if not response.direct_passthrough:
            for end in g.pop("open_counts", ()):
                response.call_on_close(end)
        return response

    @app.teardown_request
    def end_without_answer(_: BaseException | None) -> None:
        for end in g.pop("open_counts", ()):
            end()


def count_tenants(app: Flask) -> None:
    """Count each request whose tenant is known from its key; it must be called after request_caller.install."""

    @app.before_request
    def count_caller() -> None:
        caller: Caller | None = g.get("caller")
        if caller is not None:
            count_tenant(caller.tenant)


def count_tenant(tenant: str) -> None:
    """Count the current request, and the body that it may read, as the tenant's. Raises ApiError (429)."""
    bounds = current_context().request_bounds
    call_when_answered(bounds.open_tenant_request(tenant))
    g.open_body = partial(bounds.open_body, tenant)


def call_when_answered(end: Callable[[], None]) -> None:
    """Call a function when the answer to the current request has been sent, or the request has ended without one."""
    g.setdefault("open_counts", []).append(end)

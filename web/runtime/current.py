"""Give routes access to the current request, and to the context of the app that handles it."""

from flask import Flask, Request, current_app, g, request

from web.runtime.context import DoorContext

#: The key of the context in the dict `Flask.extensions`.
EXTENSION_NAME = "penstock"


def current_context() -> DoorContext:
    """Return the context of the cell that the current request uses.

    It is the first of its caller's cells that is not away; without a caller, the first such cell by name.
    """
    app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001 - as below
    context: DoorContext = app.extensions[EXTENSION_NAME]
    if context.cells.directory is None:
        return context
    chosen: DoorContext | None = g.get("context")
    return chosen or context.cells.present()[0]


def use_context(context: DoorContext) -> None:
    """Have `current_context` return this context for the rest of the current request."""
    g.context = context


def use_home(tenant: str) -> None:
    """Have `current_context` return that of the first of a tenant's cells which is not away, if there is one."""
    context = current_context()
    home = context.cells.serving(tenant)
    if context.cells.directory is not None and not context.cells.is_away(home):
        use_context(home)


def current_request() -> Request:
    """Return the current request itself. Code that reads it often uses it instead of Flask's proxy, which is slower."""
    found: Request = request._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001 - the proxy's own name
    return found

"""Give routes access to the current request, and to the context of the app that handles it."""

from flask import Flask, Request, current_app, request

from web.runtime.context import DoorContext

#: The key of the context in the dict `Flask.extensions`.
EXTENSION_NAME = "penstock"


def current_context() -> DoorContext:
    """Return the context of the current app."""
    app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001 - as below
    context: DoorContext = app.extensions[EXTENSION_NAME]
    return context


def current_request() -> Request:
    """Return the current request itself. Code that reads it often uses it instead of Flask's proxy, which is slower."""
    found: Request = request._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001 - the proxy's own name
    return found

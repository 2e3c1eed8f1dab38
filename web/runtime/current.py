"""Give routes access to the context of the app that handles the current request."""

from flask import current_app

from web.runtime.context import DoorContext

#: The key under which `Flask.extensions` contains the context.
EXTENSION_NAME = "penstock"


def current_context() -> DoorContext:
    """Return the context of the current app."""
    context: DoorContext = current_app.extensions[EXTENSION_NAME]
    return context

"""Give routes access to the context of the app that handles the current request."""

from flask import current_app

from web.runtime.context import DoorContext

#: The key of the context in the dict `Flask.extensions`.
EXTENSION_NAME = "penstock"


def current_context() -> DoorContext:
    """Return the context of the current app."""
    context: DoorContext = current_app.extensions[EXTENSION_NAME]
    return context

"""The door of the request that Flask handles."""

from flask import current_app

from web.runtime.context import DoorContext

EXTENSION = "penstock"


def current_door() -> DoorContext:
    """The door of the current app."""
    found: DoorContext = current_app.extensions[EXTENSION]
    return found

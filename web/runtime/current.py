"""The door of the request that Flask handles."""

from flask import current_app

from web.runtime.context import Door

EXTENSION = "penstock"


def door() -> Door:
    """The door of the current app."""
    found: Door = current_app.extensions[EXTENSION]
    return found

"""Keep the console's feed of an app, and find the one of the current request."""

from apiflask import APIFlask
from flask import current_app

from web.console.feed import ConsoleFeed

_EXTENSION_NAME = "penstock_console"


def keep_feed(app: APIFlask, feed: ConsoleFeed) -> None:
    """Keep the feed for the requests of this app."""
    app.extensions[_EXTENSION_NAME] = feed


def current_feed() -> ConsoleFeed:
    """Return the feed of the current request's app."""
    feed: ConsoleFeed = current_app.extensions[_EXTENSION_NAME]
    return feed

"""The WSGI entry point for gunicorn: apply gevent's patches, then read the settings and create the app."""

from web.server import gevent_patches

gevent_patches.apply()

from web.boot import boot  # noqa: E402 - nothing may be imported before the patches

app = boot()

"""The WSGI entry point for gunicorn: apply gevent's patches, then read the settings and create the app."""

from gevent import monkey

monkey.patch_all()

from web.boot import boot  # noqa: E402 - nothing may be imported before the patches

app = boot()

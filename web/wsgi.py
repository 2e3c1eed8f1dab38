"""What gunicorn imports: gevent's patches first, then settings from the environment → the app."""

from gevent import monkey

monkey.patch_all()

from web.boot import boot  # noqa: E402 - nothing may be imported before the patches

app = boot()

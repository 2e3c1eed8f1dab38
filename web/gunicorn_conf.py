"""gunicorn's settings, each with its reason; read as `gunicorn -c python:web.gunicorn_conf web.wsgi:app`."""

from gevent import monkey

# Before anything imports ssl by name: the worker processes inherit what this one has imported.
monkey.patch_all()

import os  # noqa: E402 - nothing may be imported before the patches
import sys  # noqa: E402
from typing import Any  # noqa: E402

from shared import log as logging  # noqa: E402
from shared.errors import StoreUnavailable  # noqa: E402
from web.runtime.start import configure_store, open_store, raise_file_limit, read_settings  # noqa: E402

_settings = read_settings()
logging.configure(_settings.log_level, _settings.log_format, room="web", pid=os.getpid())

wsgi_app = "web.wsgi:app"
bind = _settings.listen
workers = _settings.web_workers
#: gevent's: one greenlet a connection, so that a waiting call or a stream costs a few kB, not a thread.
worker_class = "web.gunicorn_worker.DoorWorker"
#: Idle and slow clients hold a place each, and thousands of them must not keep others out.
worker_connections = 10_000
#: Connections that the kernel keeps while a worker is busy or restarts; Linux caps it at somaxconn.
backlog = 4_096
#: Longer than the idle time-outs of common proxies (60 s), so that it is they who close: a connection that we
#: close while a request is on its way fails that request. Bounds, too, how slowly a request's head may come.
keepalive = 75
#: A process whose event loop does not turn for this long is stuck, however long its calls may wait.
timeout = 30
#: Plain OpenAI calls may still end well; waits and event streams end at once and are taken up elsewhere.
graceful_timeout = 30
#: No header moves the path under which a request is served: proxies guard routes by it.
forwarder_headers = ""
#: A restart must not need the whole of the app to be forked from a master with threads and sockets.
preload_app = False
#: The heartbeat's file on memory: on a slow disk a beat blocks the event loop.
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: PTH112, S108 - gunicorn wants a string
#: Nobody controls us by a socket in somebody's home folder.
control_socket_disable = True
#: The app logs what happens; an access line a request would be most of the log.
accesslog = None
#: gunicorn's own lines come out as ours do, from warning up.
logconfig_dict: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {},
    "root": {"level": "WARNING", "handlers": []},
    "loggers": {"gunicorn.error": {"level": "WARNING", "handlers": [], "propagate": True}},
}


def on_starting(_server: Any) -> None:
    """Refuse the start, with a sentence, on a store that is unfit or disagrees; a store that is away may come back."""
    logging.configure(_settings.log_level, _settings.log_format, room="web", pid=os.getpid())
    raise_file_limit()
    store = open_store(_settings)
    try:
        configure_store(_settings, store)
    except StoreUnavailable as error:
        sys.stderr.write(f"penstock web: {error}; jobs are refused until it answers\n")
    finally:
        store.client.close()

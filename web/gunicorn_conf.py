"""The gunicorn settings and their reasons; they are used by `gunicorn -c python:web.gunicorn_conf web.wsgi:app`."""

import gc

# Nothing is garbage until all modules are loaded. Each collection before would visit all their objects.
gc.disable()

from web.server import gevent_patches  # noqa: E402 - see above

# The patches must be applied before any module imports names from ssl. Worker processes inherit the patches.
gevent_patches.apply()

import contextlib  # noqa: E402 - nothing may be imported before the patches
import os  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

import web.boot  # noqa: E402, F401 - see preload_app
from shared import log as logging  # noqa: E402
from shared.errors import StoreUnavailable  # noqa: E402
from web.http.connection_bounds import RESERVE, connection_limits  # noqa: E402
from web.http.metric_files import MetricFiles  # noqa: E402
from web.runtime.start import configure_store, open_store, raise_file_limit, read_settings  # noqa: E402

# Nor is it later. A collection writes to each object that it visits, and would so copy the memory that the master and
# its worker processes share.
gc.freeze()
gc.enable()

_settings = read_settings()
logging.configure(_settings.log_level, _settings.log_format, room="web", pid=os.getpid())

wsgi_app = "web.wsgi:app"
bind = _settings.listen
workers = _settings.web_workers
#: A gevent worker runs one greenlet per connection. A waiting call or a stream needs only a few kB, not a thread.
worker_class = "web.server.worker.DoorWorker"
#: The worker accepts more connections than PENSTOCK_MAX_CONNECTIONS. On the reserve it answers /health and refuses
#: other requests; it stops accepting only when the reserve is in use too (web/server/worker.py).
worker_connections = connection_limits(_settings, raise_file_limit()).total + 2 * RESERVE
#: The maximum number of connections that the kernel queues while a worker is busy or restarts. Linux caps this
#: number at net.core.somaxconn.
backlog = 4_096
#: How long the door keeps an idle connection open, in seconds. This is longer than the idle timeout of common proxies
#: (60 s), so that the proxy closes the connection first: if the door closes a connection while a request is in transit,
#: the request fails. The setting also limits how long a client may take to send the head of a request.
keepalive = 75
#: gunicorn kills a worker process whose event loop has not run for this many seconds. A single request may take
#: longer.
timeout = 30
#: How long a process that was asked to stop waits for calls on OpenAI's routes to finish, in seconds. Long polls and
#: event streams end at once, and their clients resume them at another process.
graceful_timeout = 30
#: No header, such as SCRIPT_NAME, may change the path of a request. A client could otherwise circumvent a proxy that
#: restricts access by path.
forwarder_headers = ""
#: The longest header, in bytes: an identity token with many groups is longer than gunicorn's default, 8190. The whole
#: head has a bound too (web/server/parser.py).
limit_request_field_size = 17_000 if _settings.oidc_issuer else 8_190
#: Each worker process creates the app itself, so that no worker is forked from a master that has threads and sockets.
#: The app's modules are loaded once, in the master, and the workers share their memory.
preload_app = False
#: The folder of gunicorn's heartbeat file. It is in memory, because writes to a slow disk would block the event loop.
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: PTH112, S108 - gunicorn wants a string
#: Without this setting, gunicorn would open a control socket in the home folder of its user.
control_socket_disable = True
#: gunicorn writes no access log. The app has its own log, and one line per request would make up most of it.
accesslog = None
#: gunicorn's messages of level warning and above go through the root logger, in the same format as the app's.
logconfig_dict: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {},
    "root": {"level": "WARNING", "handlers": []},
    "loggers": {"gunicorn.error": {"level": "WARNING", "handlers": [], "propagate": True}},
}


def on_starting(_server: Any) -> None:
    """Check the store before any worker process starts.

    Exits with an error message if the store is unfit or was configured with different system-wide settings. If the
    store does not answer, the door starts anyway and refuses jobs until the store answers.
    """
    logging.configure(_settings.log_level, _settings.log_format, room="web", pid=os.getpid())
    store = open_store(_settings)
    try:
        configure_store(_settings, store, serves_files=True)
    except StoreUnavailable as error:
        sys.stderr.write(f"penstock web: {error}; jobs are refused until it answers\n")
    finally:
        store.client.close()


def when_ready(server: Any) -> None:
    """Create the folder in which the processes keep their metrics. If that fails, each process counts for itself."""
    server.metric_files = None
    try:
        server.metric_files = MetricFiles.create(server.cfg.uid, server.cfg.gid, _settings.web_workers)
    except OSError as error:
        server.log.warning("each process shows only its own metrics: %s", error)


def pre_fork(server: Any, worker: Any) -> None:
    """Give the new process a place for its metrics that no living process has.

    If that fails, because the memory is full for example, the process serves all the same and counts for itself.
    """
    worker.metric_place = None
    if server.metric_files is None:
        return
    taken = [other.metric_place for other in server.WORKERS.values()]
    try:
        worker.metric_place = server.metric_files.take_place(taken)
    except OSError as error:
        server.log.warning("the metrics of a new process are not shared: %s", error)


def post_fork(server: Any, worker: Any) -> None:
    """Let the new process keep its metrics at its place."""
    if worker.metric_place is not None:
        server.metric_files.join(worker.metric_place)


def child_exit(server: Any, worker: Any) -> None:
    """Remove the gauges of a process that has ended, so that they are not added to those of the others."""
    if worker.metric_place is not None:
        # gunicorn would end the whole server because of an error.
        with contextlib.suppress(OSError):
            server.metric_files.end_gauges(worker.metric_place)


def on_exit(server: Any) -> None:
    """Remove the files of metrics."""
    if server.metric_files is not None:
        server.metric_files.remove()

"""Whether this process has been asked to stop: waits and event streams then end, and cancel nothing."""

import threading

#: Set once by web/gunicorn_worker.py, never cleared.
asked = threading.Event()

"""The HTTP server's process: gunicorn's worker and parser with our bounds, and gevent's patches."""

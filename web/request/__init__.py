"""Modules that use Flask's request or response: caller, deadline, idempotency, streams, spans."""

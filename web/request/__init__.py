"""What needs Flask's request or response: the caller, its deadline, idempotency, streams, spans."""

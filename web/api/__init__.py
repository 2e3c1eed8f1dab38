"""The native HTTP API as values: bodies, refusals, jobs as JSON. Pure: knows no store and no process state."""

"""The TCP gate: newline-delimited JSON over TCP, with the same admission as the HTTP routes."""

"""The TCP gate: newline-delimited JSON in front of the same admission."""

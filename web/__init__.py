"""The door: HTTP in, verdicts out. Holds no job state."""

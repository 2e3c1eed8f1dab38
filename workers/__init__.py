"""The worker, which claims, runs and settles jobs; it serves no HTTP to clients."""

"""A worker that holds one of several models at a time, and loads the others on demand (ADR 100)."""

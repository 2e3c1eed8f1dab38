"""The routes: each parses, calls one thing, and presents its answer."""

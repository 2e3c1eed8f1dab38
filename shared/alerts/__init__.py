"""Alerts without Prometheus: which conditions hold, since when, and what has been told of them."""

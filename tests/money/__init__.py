"""Compares what Penstock charges for the jobs of an upstream with what the upstream itself has written down."""

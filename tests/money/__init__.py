"""Checks Penstock's charges for the jobs of an upstream against the upstream's own ledger."""

"""Accounting of slots and KV cells, and of the tokens that free slots keep."""

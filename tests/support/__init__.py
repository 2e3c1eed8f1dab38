"""Helpers that several tests share: builders, the reference model, processes and test doubles."""

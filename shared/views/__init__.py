"""Computes operators' views from the store's answers, without I/O."""

"""Lapsed leases and late jobs of anyone: the worker's turn at the duty that shared/reaping.py describes."""

from shared.reaping import Reaping

__all__ = ["Reaping"]

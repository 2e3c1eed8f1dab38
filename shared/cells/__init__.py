"""Cells: the directory that lists them, where tenants live, and clients of their stores."""

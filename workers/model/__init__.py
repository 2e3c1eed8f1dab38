"""Resolves PENSTOCK_MODEL to a model file on this machine."""

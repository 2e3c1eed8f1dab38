"""Runs other people's client packages, unchanged, against a real door and model: `make clients`."""

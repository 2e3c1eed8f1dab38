"""Runs Penstock in separate processes under random faults, and judges it by what its clients have written down."""

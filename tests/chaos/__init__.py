"""Runs Penstock in separate processes under random faults, and judges it by the ledger of its clients."""

"""The commands that run batches through the door."""

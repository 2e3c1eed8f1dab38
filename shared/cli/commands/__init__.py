"""The commands of `penstock`, one kind a file."""

"""The stack of `penstock up`: the store, the door and the workers of one machine, run as child processes."""

"""E1 and E3 with real processes on loopback: the door, the store and workers, compared with baseline B4."""

"""E1 and E3 with real processes on loopback: the door, the store, workers with the sim engine; and B4 beside them."""

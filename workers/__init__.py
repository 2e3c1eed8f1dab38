"""Claims, runs and settles jobs. Knows no HTTP towards clients."""

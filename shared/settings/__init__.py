"""Settings: their table, and how they are read."""

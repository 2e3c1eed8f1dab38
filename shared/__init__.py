"""What both rooms may use: the store, its words and its settings."""

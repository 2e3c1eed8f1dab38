"""The store: its keys, its scripts, and what they answer."""

"""Trains the demo model: its stories, its tokenizer and its network."""

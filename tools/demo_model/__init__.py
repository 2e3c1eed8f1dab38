"""Trains the demo model: generates its stories and chats, learns its tokenizer and trains its network."""

"""Chats: how messages and tools become a prompt, and how an answer becomes text, reasoning and calls of tools."""

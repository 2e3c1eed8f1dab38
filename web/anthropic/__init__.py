"""Converts bodies of Anthropic's Messages API to chats, and answers to its messages and events, without I/O."""

"""The answer of a job while it is generated: its tokens, its text, and its candidates."""

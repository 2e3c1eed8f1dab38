"""Structured output: converts JSON schemas and regular expressions to grammars that an answer must follow."""

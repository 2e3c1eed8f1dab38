"""What constrains an answer: JSON schemas and patterns as grammars."""

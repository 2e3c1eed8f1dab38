"""Chooses the next token of each sequence of a step from the model's logits, for all sequences at once."""

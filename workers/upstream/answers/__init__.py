"""How an upstream's answer is written down."""

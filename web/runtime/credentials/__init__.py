"""What one process of the door knows about keys: cached records, failed keys, and keys in use that may end."""

"""The keys that one process of the door knows: cached records, failed keys, and keys in use that may end."""

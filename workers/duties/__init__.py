"""The duties of a worker, one a file; they do not know each other."""

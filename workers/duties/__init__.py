"""The duties of a worker, one in each file; they do not depend on each other."""

"""HTTP concerns that are independent of jobs: request parsing, error objects, host checks, disconnects, metrics."""

"""HTTP itself: requests, error objects, hosts, disconnects. Knows no jobs."""

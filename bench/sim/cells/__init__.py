"""Many cells in simulated time: each runs the real scripts in a store of its own, and doors place and spill jobs."""

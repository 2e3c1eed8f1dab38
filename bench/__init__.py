"""Benchmarks: programs that print their environment first and write their figures to results/."""

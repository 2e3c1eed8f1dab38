"""Benchmarks: programs that print their environment first and keep what they saw under results/."""

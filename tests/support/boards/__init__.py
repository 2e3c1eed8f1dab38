"""The expected figures of the boards and rules, and the system that they describe."""

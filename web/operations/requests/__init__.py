"""Parsed requests, and the jobs that the door offers for them."""

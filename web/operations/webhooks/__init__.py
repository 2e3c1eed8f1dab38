"""Webhooks: what a request may ask for, and the duty that sends them."""

"""Webhooks: their fields in requests, and the duty that sends them."""

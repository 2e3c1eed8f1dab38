"""Webhooks that are to be told, and how tries to send them ended."""

"""Webhooks: the events, their signatures, and the delivery to the addresses of clients."""

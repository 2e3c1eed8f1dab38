"""The URLs to which webhooks are sent, and the addresses that they may lead to."""

"""What one ingress process holds: settings, the store, caches, event followers."""

"""The state of one door process: settings, the store client, caches, event followers and duties."""

"""The arguments of scripts that have many."""

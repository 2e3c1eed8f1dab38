"""Other designs for the same task, each as a queue of its own: bench/README.md names their sources."""

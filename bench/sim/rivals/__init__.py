"""Other designs for the same task, each as a queue of its own: docs/overload.md names their sources."""

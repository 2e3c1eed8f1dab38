"""What operators see, computed from what the store has answered, without I/O."""

"""What the boards and rules must show, and the system whose figures they show."""

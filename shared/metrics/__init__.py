"""The name, labels and help text of every metric that the door exports."""

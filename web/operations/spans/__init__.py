"""The spans that the door writes."""

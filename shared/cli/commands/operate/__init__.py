"""The commands with which operators steer a running system and read its records."""

"""Code that the door and the workers share: the store, job types, settings, logging and the command line."""

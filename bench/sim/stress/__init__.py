"""The scenarios in which Penstock is compared with the rivals, their figures and their table."""

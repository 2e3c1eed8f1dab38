"""What routes and the gate do with jobs: admit, follow, wait, cancel."""

"""What clients can do with jobs, for HTTP and the gate alike: admit, wait, follow, cancel. It knows no Flask."""

"""The actions that HTTP routes and the gate offer on jobs: admit, wait, follow, cancel. No module here uses Flask."""

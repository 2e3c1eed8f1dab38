"""What `penstock up` runs: the processes of one machine and their store."""

"""The experiments E1 to E8 of bench/README.md, one file each: the runs they need and the targets they must meet."""

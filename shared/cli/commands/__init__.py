"""The commands of `penstock`, grouped by subject into one file each."""

"""Runs the command line as `python -m shared.cli`, in case the `penstock` script is not on the PATH."""

from shared.cli import main

main()

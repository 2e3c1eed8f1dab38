"""`python -m shared.cli`: the command where its script is not on the PATH."""

from shared.cli import main

main()

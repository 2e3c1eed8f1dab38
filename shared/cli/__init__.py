"""The entry point of `penstock`. It imports little itself, so that Ctrl-C leaves no traceback from the start on."""

import sys
from collections.abc import Sequence

#: The exit code after Ctrl-C: 128 and the number of SIGINT, as shells have it.
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with 0, 1 (refusal or fault), 2 (usage error), 75 (`yield`) or 130 (Ctrl-C)."""
    try:
        from shared.cli.streams import guard

        guard()
        # These imports take most of the time of a short command.
        from shared.cli.command_line import run

        code = run(arguments)
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)

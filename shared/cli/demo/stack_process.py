"""The process that runs the demo's stack: it ends, and removes its state folder, as soon as its stdin is closed.

The demo holds the other end of the pipe. The kernel closes it even if the demo is killed with SIGKILL, so that no
process and no file outlives the demo.
"""

import os
import shutil
import signal
import sys
import threading

from shared.cli.stack.stack import Stack, report
from shared.errors import PenstockError
from shared.settings.settings import load


def main() -> int:
    settings = load(dotenv=None)
    # Until the stack has its own handlers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    threading.Thread(target=_stop_at_end_of_stdin, daemon=True).start()
    try:
        return Stack(settings, [{}], take_over=False).run()
    except PenstockError as error:
        report(str(error))
        return 1
    finally:
        shutil.rmtree(settings.state_path, ignore_errors=True)


def _stop_at_end_of_stdin() -> None:
    """Wait for the end of stdin, and then stop the stack as two presses of Ctrl-C do: no client waits anymore."""
    while sys.stdin.buffer.read(1):
        pass
    # Two different signals, because two equal ones could arrive as one.
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())

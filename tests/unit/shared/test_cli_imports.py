"""The command line loads the packages of its commands only when one runs, so that `penstock --help` answers soon."""

import subprocess
import sys

from tests.support.program import ROOT

#: A package takes a tenth of a second of CPU time or more.
SLOW = "{'asyncio', 'numpy', 'pydantic', 'redis', 'rich', 'rq'}"


def test_the_list_of_commands_needs_no_slow_package() -> None:
    code = f"import shared.cli.command_line, sys; print(sorted({SLOW} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

"""The progress bar that is shown on a terminal while a worker loads its model."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ReportProgress = Callable[[float], None]


@contextmanager
def loading_bar(what: str, *, alone: bool) -> Iterator[ReportProgress | None]:
    """Show a progress bar for loading `what`, and remove it when the context ends.

    The context value is a function to call with the loaded share, 0 to 1, or None if no bar is shown. A bar is shown
    only if stderr is a terminal and the worker is `alone` on this machine, because several workers would draw their
    bars over each other.
    """
    if not (alone and sys.stderr.isatty()):
        yield None
        return
    # Most workers write to no terminal, and start sooner without these modules.
    from rich.console import Console  # noqa: PLC0415 - see above
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - see above

    share = TextColumn("{task.percentage:>3.0f} %")
    columns = (TextColumn("{task.description}"), BarColumn(), share, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"loading {what}", total=1.0)
        yield lambda loaded: progress.update(task, completed=loaded)

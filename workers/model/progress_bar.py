"""What a person sees while a worker loads its model: a bar on a terminal, nothing elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

ReportProgress = Callable[[float], None]


@contextmanager
def loading_bar(what: str, *, alone: bool) -> Iterator[ReportProgress | None]:
    """A function to be told the loaded share, 0 to 1; None where nobody would see it.

    On stderr, when that is a terminal, and gone when the context ends. Workers that are not `alone` on this
    machine share the terminal, and draw no bars over one another's.
    """
    if not (alone and sys.stderr.isatty()):
        yield None
        return
    share = TextColumn("{task.percentage:>3.0f} %")
    columns = (TextColumn("{task.description}"), BarColumn(), share, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"loading {what}", total=1.0)
        yield lambda loaded: progress.update(task, completed=loaded)

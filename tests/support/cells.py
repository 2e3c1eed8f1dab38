"""Several cells in one store, by their key prefixes."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import redis

from shared.store.connection import open_client


@contextmanager
def open_cells(store_url: str, names: Sequence[str] = ("default", "b", "c")) -> Iterator[dict[str, redis.Redis]]:
    """Yield a client of each cell by its name. The default cell has no prefix."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(open_client(store_url, name="penstock-test", prefix=prefix_of_cell(name)))
            for name in names
        }


def prefix_of_cell(name: str) -> str:
    return "" if name == "default" else f"{{{name}}}:"

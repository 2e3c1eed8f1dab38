"""How a door begins to serve the cells of a directory, and leaves a directory that has ended alone."""

import pytest
from structlog.testing import capture_logs

from shared.cells.stored import StoredDirectory
from tests.support.cells_door import cells_door


@pytest.mark.parametrize(("auth", "said"), [("open", True), ("required", False)])
def test_a_door_without_keys_logs_that_it_serves_all_cells_so(store, settings, store_url, auth, said):
    with capture_logs() as logs, cells_door(store, settings, store_url, auth=auth):
        pass
    assert any(line["event"] == "cells.open" and line["log_level"] == "warning" for line in logs) is said


def test_a_directory_that_has_ended_is_not_written_back(store, settings, store_url):
    with cells_door(store, settings, store_url) as door:
        cells, stored = door.context.cells, StoredDirectory(store.client)
        stored.remove()
        door.watch.repair(cells.directory)
        assert stored.version() == 1, "a cell beside others gets its copy back"
        door.change(cells={"default": cells.directory.cells["default"]})
        stored.remove()
        door.watch.repair(cells.directory)
        assert stored.version() == 0

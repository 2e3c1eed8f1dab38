"""A door that requires no keys says so when it begins to serve the cells of a directory."""

import pytest
from structlog.testing import capture_logs

from tests.support.cells_door import cells_door


@pytest.mark.parametrize(("auth", "said"), [("open", True), ("required", False)])
def test_a_door_without_keys_logs_that_it_serves_all_cells_so(store, settings, store_url, auth, said):
    with capture_logs() as logs, cells_door(store, settings, store_url, auth=auth):
        pass
    assert any(line["event"] == "cells.open" and line["log_level"] == "warning" for line in logs) is said

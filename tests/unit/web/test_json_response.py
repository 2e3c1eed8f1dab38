"""Tests that a body is written as JSON however deeply an upstream has nested it."""

import json
from typing import Any

from flask import Flask

from web.request.responses import json_response


def test_a_body_that_is_nested_deeply_is_written_whole():
    nested: Any = "x"
    for _ in range(900):
        nested = {"a": nested}
    with Flask(__name__).app_context():
        assert json.loads(json_response(nested).get_data()) == nested

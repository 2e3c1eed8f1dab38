"""Asserts that a JSON text fits a JSON schema."""

import json
import math
from decimal import Decimal
from typing import Any

# Importing the package jsonschema instead takes three seconds of CPU time in each process that collects tests.
import jsonschema_rs


def assert_fits(schema: dict[str, Any], text: str | bytes) -> None:
    """Raise ValidationError if the text does not fit, JSONDecodeError if it is no JSON. A number may be of any size."""
    jsonschema_rs.validate(schema, json.loads(text, parse_float=_number))


def _number(text: str) -> float | Decimal:
    """Return the number as a float, unless it is too large for one: the validator takes infinity for null."""
    return number if math.isfinite(number := float(text)) else Decimal(text)

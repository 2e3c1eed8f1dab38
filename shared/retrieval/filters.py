"""Filters over the metadata of documents: parsed from the JSON of OpenAI's file search, and written as SQL.

    {"type": "eq", "key": "year", "value": 2026}
    {"type": "and", "filters": [{"type": "in", "key": "team", "value": ["red", "blue"]}, …]}

A comparison is typed: the number 1, the text "1" and true differ. A list of texts is equal to each of its texts. A key
that a document lacks, or whose value has another type, is equal to nothing: only `ne` and `nin` hold for it.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from shared.retrieval.errors import InvalidFilter, InvalidInput

#: Bounds on a filter: nested combinations, comparisons in all, values of one `in`, characters of a key and of a text.
MAX_DEPTH, MAX_COMPARISONS, MAX_VALUES, MAX_KEY, MAX_TEXT = 4, 32, 100, 64, 512

Scalar = str | float | bool
Equality = Literal["eq", "ne"]
Order = Literal["gt", "gte", "lt", "lte"]
Membership = Literal["in", "nin"]

_EQUALITIES: dict[object, Equality] = {"eq": "eq", "ne": "ne"}
_ORDERS: dict[object, Order] = {"gt": "gt", "gte": "gte", "lt": "lt", "lte": "lte"}
_MEMBERSHIPS: dict[object, Membership] = {"in": "in", "nin": "nin"}
_COMBINATIONS: dict[object, Literal["and", "or"]] = {"and": "and", "or": "or"}
_TYPES = (*_EQUALITIES, *_ORDERS, *_MEMBERSHIPS, *_COMBINATIONS)
_SQL = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "and": " AND ", "or": " OR "}
_NOT_STORED = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One key compared with one value, or with several for `in` and `nin`."""

    type: Equality | Order | Membership
    key: str
    value: Scalar | tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Combination:
    """Several filters that must hold all (`and`), or at least one (`or`)."""

    type: Literal["and", "or"]
    filters: "tuple[Filter, ...]"


Filter = Comparison | Combination


def parse_filter(value: object, path: str = "filter") -> Filter:
    """Return the filter that a client sent as JSON in the field `path`.

    Raises InvalidFilter, which names the part that is wrong.
    """
    filter_, comparisons = _parse(value, path, 1)
    if comparisons > MAX_COMPARISONS:
        raise InvalidFilter(path, f"{comparisons} comparisons", f"may have at most {MAX_COMPARISONS}")
    return filter_


def filter_json(filter_: Filter | None) -> str:
    """Return a filter as one JSON text, equal for equal filters, for example as part of the key of a cache."""
    return json.dumps(_as_object(filter_), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def to_sql(filter_: Filter, column: str = "metadata") -> tuple[str, list[object]]:
    """Return a condition on a jsonb column, with a placeholder `%s` for each value, and the values.

    No part of a filter is in the condition's text. `column` is the caller's own text.
    """
    if isinstance(filter_, Combination):
        parts = [to_sql(part, column) for part in filter_.filters]
        joined = _SQL[filter_.type].join(sql for sql, _ in parts)
        return f"({joined})", [value for _, values in parts for value in values]
    key = filter_.key
    if filter_.type in _ORDERS:
        # CASE, because AND may compute its second part first, and that fails for a text.
        is_text = isinstance(filter_.value, str)
        kind, compared = ("string", '({0} ->> %s) COLLATE "C"') if is_text else ("number", "({0} ->> %s)::float8")
        sql = (
            f"CASE WHEN jsonb_typeof({column} -> %s) = '{kind}' "
            f"THEN {compared.format(column)} {_SQL[filter_.type]} %s ELSE false END"
        )
        return sql, [key, key, filter_.value]
    values = filter_.value if isinstance(filter_.value, tuple) else (filter_.value,)
    sql = f"coalesce(({column} -> %s) @> ANY (%s::text[]::jsonb[]), false)"
    return (f"NOT {sql}" if filter_.type in {"ne", "nin"} else sql), [key, [json.dumps(each) for each in values]]


def finite_number(field: str, value: float, error: type[InvalidInput] = InvalidInput) -> float:
    """Return a number as a float. Raises `error`, which names the field, if it is too large or not a number."""
    try:
        number = float(value)
    except OverflowError:
        raise error(field, "a large integer", "must be a number below 1e308") from None
    if not math.isfinite(number):
        raise error(field, number, "must be a finite number")
    return number


def _parse(value: object, path: str, depth: int) -> tuple[Filter, int]:
    """Return the filter at a path, and how many comparisons it has."""
    if not isinstance(value, Mapping):
        raise InvalidFilter(path, value, "must be an object")
    type_ = value.get("type")
    if not isinstance(type_, str) or type_ not in _TYPES:
        raise InvalidFilter(f"{path}.type", type_, f"must be one of {', '.join(map(str, _TYPES))}")
    is_combination = type_ in _COMBINATIONS
    expected = {"type", "filters"} if is_combination else {"type", "key", "value"}
    for name in (*(name for name in value if name not in expected), *sorted(expected - value.keys())):
        raise InvalidFilter(f"{path}.{name}", value.get(name), "is missing" if name in expected else "is not known")
    if not is_combination:
        return _comparison(type_, value, path), 1
    if depth > MAX_DEPTH:
        raise InvalidFilter(path, type_, f"filters may be nested {MAX_DEPTH} deep at most")
    parts = value["filters"]
    if not isinstance(parts, list | tuple) or not 1 <= len(parts) <= MAX_COMPARISONS:
        raise InvalidFilter(f"{path}.filters", parts, f"must be a list of 1 to {MAX_COMPARISONS} filters")
    parsed = [_parse(part, f"{path}.filters[{index}]", depth + 1) for index, part in enumerate(parts)]
    return Combination(_COMBINATIONS[type_], tuple(part for part, _ in parsed)), sum(count for _, count in parsed)


def _comparison(type_: str, value: Mapping[str, object], path: str) -> Comparison:
    key, compared = value["key"], value["value"]
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY or _NOT_STORED.search(key):
        raise InvalidFilter(f"{path}.key", key, f"must be a text of 1 to {MAX_KEY} characters, without NUL")
    if type_ in _MEMBERSHIPS:
        if not isinstance(compared, list | tuple) or not 1 <= len(compared) <= MAX_VALUES:
            raise InvalidFilter(f"{path}.value", compared, f"must be a list of 1 to {MAX_VALUES} values")
        values = tuple(_scalar(f"{path}.value[{index}]", each) for index, each in enumerate(compared))
        return Comparison(_MEMBERSHIPS[type_], key, values)
    scalar = _scalar(f"{path}.value", compared)
    if type_ in _EQUALITIES:
        return Comparison(_EQUALITIES[type_], key, scalar)
    if isinstance(scalar, bool):
        raise InvalidFilter(f"{path}.value", compared, f"must be a number or a text for {type_}")
    return Comparison(_ORDERS[type_], key, scalar)


def _scalar(path: str, value: object) -> Scalar:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) <= MAX_TEXT and not _NOT_STORED.search(value):
        return value
    if isinstance(value, int | float):
        return finite_number(path, value, InvalidFilter)
    raise InvalidFilter(path, value, f"must be a number, a boolean or a text of at most {MAX_TEXT} characters")


def _as_object(filter_: Filter | None) -> object:
    if filter_ is None:
        return None
    if isinstance(filter_, Combination):
        return {"type": filter_.type, "filters": [_as_object(part) for part in filter_.filters]}
    value = list(filter_.value) if isinstance(filter_.value, tuple) else filter_.value
    return {"type": filter_.type, "key": filter_.key, "value": value}

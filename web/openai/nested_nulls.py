"""Remove the null fields of the objects in a request, which count as absent as in OpenAI's API; pure functions."""

from typing import Any

#: Each object of a request whose null fields count as absent → an object inside it for which this is true as well. In a
#: schema, null is a value like any other.
_OBJECTS = {
    "escalate": "",
    "logit_bias": "",
    "response_format": "json_schema",
    "stream_options": "",
    "structured_outputs": "",
    "text": "format",
}


def without_nulls(name: str, value: Any) -> Any:
    """Return the value of a request's field `name`, without null fields if it is one of these objects."""
    if name not in _OBJECTS or not isinstance(value, dict):
        return value
    kept = present(value)
    inner = kept.get(_OBJECTS[name])
    return kept | {_OBJECTS[name]: present(inner)} if isinstance(inner, dict) else kept


def present(value: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an object that are not null."""
    return {name: given for name, given in value.items() if given is not None}

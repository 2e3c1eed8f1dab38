"""Which of the fields that the worker adds to requests a server refuses; pure."""

import re
from collections.abc import Mapping
from typing import Any

from workers.upstream.faults import Rejected

#: The names of the field with the length of an answer. Models that reason refuse the first, older servers the second.
LENGTH_FIELDS = ("max_tokens", "max_completion_tokens")
#: How servers say that they do not take a field, whatever its value.
_REFUSED = re.compile(
    r"unsupported|not supported|does not support|unknown|unrecogni[sz]ed|unexpected|not permitted|forbidden|not allowed"
    r"|extra (?:inputs?|fields?)|deprecated|no such|additional properties|invalid (?:parameter|argument|field)|instead",
    re.IGNORECASE,
)


def refused_field(fault: Rejected, sent: Mapping[str, Any]) -> str | None:
    """Return the added field that made a server refuse a request, or None.

    A message about the value of a field, such as a length that does not fit the context, is not about the field.
    """
    said = f"{fault.message} {fault.param}"
    named = [name for name in sent if re.search(rf"\b{name}\b", said)]
    if not named or not _REFUSED.search(fault.message):
        return None
    name = fault.param if fault.param in sent else min(named, key=said.find)
    is_about_value = name in LENGTH_FIELDS and re.search(rf"\b{sent[name]}\b", fault.message)
    return None if is_about_value else name

"""Which fields of a request to OpenAI's routes are accepted; pure functions.

There are three kinds of fields:

- Some are supported.
- Some would not affect the answer. They are accepted, ignored, and named in a header of the response.
- All others, including unknown fields, might affect the answer, so they are never silently ignored: the request is
  answered with 400 `unsupported_parameter` and the name of the field.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any

from web.api.ignored import note_ignored
from web.http.api_errors import ApiError, quoted
from web.openai import vllm_sampling
from web.openai.nested_nulls import without_nulls

#: Fields that are accepted and ignored.
_IGNORED = frozenset(
    {
        "cache_control",
        "client_metadata",
        "copilot_cache_control",
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        *vllm_sampling.IGNORED,
    }
)
#: Names that Mistral's API has for fields of OpenAI's.
_SYNONYMS = {"random_seed": "seed"}
#: Fields that are accepted only with these values, which are hints that no model here can follow, and are ignored.
VERBOSITIES = ("low", "medium", "high")
_HINTS: dict[str, tuple[str, ...]] = {"verbosity": VERBOSITIES}
#: Fields that are accepted only with these values, because they request the door's usual behavior.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logprobs": (False, 0),
    "modalities": (["text"],),
    "n": (1,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    **vllm_sampling.NEUTRAL,
}


def unsupported(param: str, reason: str) -> ApiError:
    """Return the error, with status 400, for a parameter that is not supported."""
    return ApiError("unsupported_parameter", f"{param} is not supported: {reason}", param=param)


def shown(value: Any) -> str:
    """Return a value for use in an error message: a text without quotes, other values as their repr, both shortened."""
    return value[:60] if isinstance(value, str) else quoted(value)


def supported_fields(
    value: dict[str, Any],
    known: frozenset[str],
    *,
    more_ignored: AbstractSet[str] = frozenset(),
    more_neutral: Mapping[str, tuple[Any, ...]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the fields of `value` that are in `known`. As in OpenAI's API, a field that is null is treated as absent.

    `more_ignored` adds fields to `_IGNORED`, and `more_neutral` to `_NEUTRAL`: those are accepted only with certain
    values and are not returned. Raises ApiError(unsupported_parameter) for any field or value that is not accepted.
    """
    accepted_values = _HINTS | _NEUTRAL | dict(more_neutral)
    kept = {}
    for named, given in value.items():
        synonym = _SYNONYMS.get(named, named)
        name = named if synonym in value else synonym
        if name in known and given is not None:
            kept[name] = without_nulls(name, given)
        elif given is None:
            continue
        elif name in _IGNORED or name in more_ignored or given in _HINTS.get(name, ()):
            note_ignored(name)
        elif name not in accepted_values:
            raise unsupported(name, "the field is unknown")
        elif not any(given == accepted and type(given) is type(accepted) for accepted in accepted_values[name]):
            choices = " or ".join(repr(accepted) for accepted in accepted_values[name])
            raise unsupported(name, f"{name}={shown(given)} was requested, and only {choices} is accepted")
    return kept

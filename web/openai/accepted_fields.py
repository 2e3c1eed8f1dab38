"""Which fields of a request to OpenAI's routes are accepted; pure functions.

There are three kinds of fields:

- Some are supported.
- Some would not affect the answer. They are accepted, ignored, and named in a header of the response.
- All others, including unknown fields, might affect the answer, so they are never silently ignored: the request is
  answered with 400 `unsupported_parameter` and the name of the field.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import model_validator

from web.api.body import Body, NotesIgnored, check_sizes, note_ignored
from web.http.api_errors import ApiError, quoted

#: Fields that are accepted and ignored, also those that only vLLM's clients send.
_IGNORED = frozenset(
    {
        "cache_control",
        "cache_salt",
        "client_metadata",
        "copilot_cache_control",
        "guided_decoding_backend",
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "spaces_between_special_tokens",
        "store",
        "user",
    }
)
#: Names that Mistral's API has for fields of OpenAI's.
_SYNONYMS = {"random_seed": "seed"}
#: Fields that are accepted only with these values, which are hints that no model here can follow, and are ignored.
VERBOSITIES = ("low", "medium", "high")
_HINTS: dict[str, tuple[str, ...]] = {"verbosity": VERBOSITIES}
#: Fields that are accepted only with these values, because they request the door's usual behavior.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "bad_words": ([],),
    "best_of": (1,),
    "continue_final_message": (False,),
    "early_stopping": (False,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1.0, 1),
    "logprobs": (False, 0),
    "modalities": (["text"],),
    "n": (1,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
}


def unsupported(param: str, reason: str) -> ApiError:
    """Return the error, with status 400, for a parameter that is not supported."""
    return ApiError("unsupported_parameter", f"{param} is not supported: {reason}", param=param)


def shown(value: Any) -> str:
    """Return a value for use in an error message: a text without quotes, other values as their repr, both shortened."""
    return value[:60] if isinstance(value, str) else quoted(value)


#: Each object of a request whose null fields count as absent → an object inside it for which this is true as well. In a
#: schema, null is a value like any other.
_OBJECTS = {
    "escalate": "",
    "logit_bias": "",
    "response_format": "json_schema",
    "retrieval": "",
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


class OpenAIFields(NotesIgnored, Body):
    """Base class of the bodies of OpenAI's routes, which keep only the fields that are supported."""

    #: The lengths to check before the fields are validated, and the name of the list of messages.
    sizes: ClassVar[Mapping[str, int]] = {}
    message_list: ClassVar[str] = ""
    #: The fields that this body accepts in addition to `_IGNORED` and `_NEUTRAL`.
    more_ignored: ClassVar[frozenset[str]] = frozenset()
    more_neutral: ClassVar[dict[str, tuple[Any, ...]]] = {}

    @classmethod
    def converted(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Return the body with the fields that are converted before they are validated. Raises ApiError."""
        return value

    @model_validator(mode="before")
    @classmethod
    def _keep_supported_fields(cls, value: Any) -> Any:
        """Return the supported fields. As in OpenAI's API, a field that is null is treated as absent.

        Raises ApiError(unsupported_parameter) for any field or value that is not accepted.
        """
        if not isinstance(value, dict):
            return value
        check_sizes(value, cls.sizes, messages=cls.message_list)
        accepted_values = _HINTS | _NEUTRAL | cls.more_neutral
        kept = {}
        for named, given in cls.converted(value).items():
            synonym = _SYNONYMS.get(named, named)
            name = named if synonym in value else synonym
            if name in cls.model_fields and given is not None:
                kept[name] = without_nulls(name, given)
            elif given is None:
                continue
            elif name in _IGNORED or name in cls.more_ignored or given in _HINTS.get(name, ()):
                note_ignored(name)
            elif name not in accepted_values:
                raise unsupported(name, "the field is unknown")
            elif not any(given == accepted and type(given) is type(accepted) for accepted in accepted_values[name]):
                choices = " or ".join(repr(accepted) for accepted in accepted_values[name])
                raise unsupported(name, f"{name}={shown(given)} was requested, and only {choices} is accepted")
        return kept

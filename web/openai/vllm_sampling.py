"""The sampling fields that vLLM's clients send beside OpenAI's, and which of them are accepted; pure functions."""

from typing import Any

from pydantic import Field, model_validator

from web.api.request_schema import Sampling

#: Fields that do not affect an answer here: they are accepted and ignored.
IGNORED = frozenset({"cache_salt", "guided_decoding_backend", "request_id", "spaces_between_special_tokens"})
#: Fields that are accepted only with these values, because they request the usual behavior.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "bad_words": ([],),
    "continue_final_message": (False,),
    "early_stopping": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1.0, 1),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "use_beam_search": (False,),
}


class VllmSampling(Sampling):
    """The sampling fields of the OpenAI routes, with those of their names and values that only vLLM knows."""

    top_k: int = Field(40, ge=-1, le=1_000_000, description="0 or -1: no limit")
    repetition_penalty: float | None = Field(None, ge=0.01, le=10, description="vLLM's name of repeat_penalty")

    @model_validator(mode="after")
    def _require_one_penalty(self) -> "VllmSampling":
        if "repeat_penalty" in self.model_fields_set and self.repetition_penalty not in (None, self.repeat_penalty):
            raise ValueError(
                f"repetition_penalty={self.repetition_penalty} and repeat_penalty={self.repeat_penalty} are two names "
                "of the same penalty"
            )
        return self

    def sampling(self) -> dict[str, Any]:
        """Return the sampling fields of the payload, under the names of the native route."""
        fields = super().sampling() | {"top_k": max(0, self.top_k)}
        if self.repetition_penalty is None:
            return fields
        asked = sorted({*fields["asked"], "repeat_penalty"})
        return fields | {"repeat_penalty": self.repetition_penalty, "asked": asked}

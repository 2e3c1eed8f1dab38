"""A LoRA adapter of a model, as an operator names it."""

from dataclasses import dataclass
from pathlib import Path

SETTING = "PENSTOCK_ADAPTERS"


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter: the name that follows the base's and a colon, its file, and how strongly it is applied."""

    name: str
    path: Path
    #: The text of the setting that names it, for messages.
    text: str
    scale: float = 1.0

    def __str__(self) -> str:
        """Return how messages name the adapter."""
        return f"{SETTING}: adapter {self.name!r} ({self.text!r})"

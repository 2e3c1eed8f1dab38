"""The demo model: where its file lies; how it is written, trained and copied is beside this file."""

from pathlib import Path

#: The name that a demo model gives itself (`general.name`) and is served by.
DEMO_MODEL_NAME = "penstock-demo"


def demo_model_path() -> Path:
    """Return where the trained demo model lies in the installed package, whether or not it is there."""
    return Path(__file__).with_name(f"{DEMO_MODEL_NAME}.gguf")

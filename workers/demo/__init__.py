"""The demo model's name and path; the other files of this package write the model."""

from pathlib import Path

#: The name in a demo model's metadata (`general.name`), under which it is served.
DEMO_MODEL_NAME = "penstock-demo"


def demo_model_path() -> Path:
    return Path(__file__).with_name(f"{DEMO_MODEL_NAME}.gguf")

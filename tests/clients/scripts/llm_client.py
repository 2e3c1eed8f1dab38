"""llm: a model from its YAML file, prompts, streams, schemas and chains of tools."""

import os
import tempfile
from pathlib import Path

from check import BASE_URL, CITIES, KEY, MODEL, check, main

_folder = tempfile.mkdtemp()
os.environ["LLM_USER_PATH"] = _folder
(Path(_folder) / "extra-openai-models.yaml").write_text(
    f"- model_id: checked\n  model_name: {MODEL}\n  api_base: {BASE_URL}\n"
    "  supports_tools: true\n  supports_schema: true\n"
)

import llm  # noqa: E402 - it reads the folder when it is imported

model = llm.get_model("checked")
model.key = KEY
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": list(CITIES)}},
    "required": ["city"],
    "additionalProperties": False,
}


def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


@check("prompt")
def _prompt() -> None:
    assert model.prompt("hello", max_tokens=50, stream=False).text()


@check("stream")
def _stream() -> None:
    assert len(list(model.prompt("hello", max_tokens=50))) > 1


@check("schema")
def _schema() -> None:
    text = model.prompt("a city", schema=SCHEMA, stream=False).text()
    assert any(city in text for city in CITIES), text


@check("chain with a tool, the model decides")
def _chain() -> None:
    assert model.chain("hello", tools=[weather], options={"max_tokens": 50}).text() is not None


main()

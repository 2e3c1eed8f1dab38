"""instructor: models of pydantic in its default mode, by JSON schema, and streamed in parts."""

from typing import Literal

import instructor
from check import CITIES, MODEL, check, main
from openai import OpenAI
from pydantic import BaseModel


class Trip(BaseModel):
    """A trip."""

    city: Literal["Paris", "Rome", "Oslo"]
    days: Literal[1, 2, 3]


#: Greedy, so that the model of the tests answers the same each time.
GREEDY = {"temperature": 0, "max_tokens": 300}
QUESTION = [{"role": "user", "content": "a trip to Paris for two days"}]


@check("default mode")
def _default() -> None:
    client = instructor.from_openai(OpenAI())
    trip = client.chat.completions.create(model=MODEL, response_model=Trip, messages=QUESTION, max_retries=0, **GREEDY)
    assert trip.city in CITIES


@check("JSON schema mode")
def _schema() -> None:
    client = instructor.from_openai(OpenAI(), mode=instructor.Mode.JSON_SCHEMA)
    trip = client.chat.completions.create(model=MODEL, response_model=Trip, messages=QUESTION, max_retries=0, **GREEDY)
    assert trip.city in CITIES


@check("streamed parts")
def _partial() -> None:
    client = instructor.from_openai(OpenAI())
    parts = list(client.chat.completions.create_partial(model=MODEL, response_model=Trip, messages=QUESTION, **GREEDY))
    assert parts[-1].city in CITIES


main()

"""Tests that the calls of answers to random requests with random tools fit; `bench/tool_calls.py` has more of them."""

from collections import Counter
from random import Random

import pytest

from shared.jobs.outcomes import EndCode
from tests.support.random_tools import random_request, verdict
from workers.engine.events import JobRejected

RUNS = 24


@pytest.mark.parametrize("backend", [("split", 16384)], indirect=True, ids=["split"])
def test_the_calls_of_every_answer_fit_their_schemas(driven):
    rng, asked = Random(1), {}
    while len(asked) < RUNS:
        request, key = random_request(rng), str(len(asked))
        try:
            driven.submit(key, request.payload)
            asked[key] = request
        except JobRejected as rejected:
            if rejected.code != EndCode.CONTEXT_LENGTH_EXCEEDED:
                raise
    driven.run_until_idle()
    found = {key: verdict(request, driven.ended[key]) for key, request in asked.items()}
    assert {key: why for key, (how, why) in found.items() if how == "invalid"} == {}
    assert Counter(how for how, _ in found.values())["valid"] > 0

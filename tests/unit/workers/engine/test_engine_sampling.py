"""Tests of read_sampling: missing settings get the documented defaults, and invalid ones are rejected by name."""

import pytest

from workers.engine.events import JobRejected
from workers.engine.sampling import Sampling, is_greedy, read_sampling


def test_an_empty_payload_gets_the_documented_defaults():
    sampling = read_sampling({})
    assert sampling == Sampling()
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.8, 40, 0.95, 0.05)
    assert not sampling.penalizes


def test_a_null_field_counts_as_absent():
    assert read_sampling({"temperature": None, "seed": None, "stop": None}) == Sampling()


def test_temperature_zero_is_greedy():
    assert is_greedy(read_sampling({"temperature": 0}))
    assert not is_greedy(read_sampling({"temperature": 0.01}))


def test_stop_accepts_one_string_or_a_list_of_strings():
    assert read_sampling({"stop": "x"}).stop == ("x",)
    assert read_sampling({"stop": ["x", "y"]}).stop == ("x", "y")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", float("nan")),
        ("top_p", 1.01),
        ("min_p", -1),
        ("top_k", 1.5),
        ("top_k", -1),
        ("repeat_penalty", 0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("seed", 0.5),
        ("seed", 1 << 64),
        ("stop", [""]),
        ("stop", ["x"] * 17),
        ("stop", 5),
        ("stop", "x" * 257),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", [1]),
        ("min_tokens", -1),
        ("min_tokens", 2.0),
        ("ignore_eos", 1),
        ("stop_token_ids", 5),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", [0] * 257),
    ],
)
def test_an_invalid_value_is_rejected_with_the_name_of_its_field(field, value):
    with pytest.raises(JobRejected) as rejected:
        read_sampling({field: value})
    assert (rejected.value.code, rejected.value.param) == ("invalid_value", field)
    assert rejected.value.message.startswith(f"{field}=")

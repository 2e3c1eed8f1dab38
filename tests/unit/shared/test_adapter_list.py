"""Tests of PENSTOCK_ADAPTERS: names, files and scales, and errors that name the value."""

from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.jobs.adapter_list import MOST_ADAPTERS, adapter_models, joined_adapters, listed_adapters
from shared.settings.settings import load


def listed(text: str):
    return listed_adapters(load({"PENSTOCK_ADAPTERS": text, "PENSTOCK_MODEL": "/m/base.gguf"}, None))


def test_each_adapter_has_a_name_a_file_and_a_scale():
    found = listed("formal=/a/f.gguf, brief=/b=c.gguf:0.5,odd=x:1:-2e-1,")
    assert [(one.name, one.path, one.scale) for one in found] == [
        ("formal", Path("/a/f.gguf"), 1.0),
        ("brief", Path("/b=c.gguf"), 0.5),
        ("odd", Path("x:1"), -0.2),
    ]
    assert listed("") == []


def test_adapters_are_served_under_the_models_name():
    settings = load({"PENSTOCK_ADAPTERS": "a=x,b=y", "PENSTOCK_MODEL": "/m/base.gguf"}, None)
    assert adapter_models(settings) == {"base:a": "a", "base:b": "b"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("formal", "'formal' is not NAME=FILE[:SCALE]"),
        ("a b=x", "'a b=x' is not NAME=FILE[:SCALE]"),
        ("a=x,a=y", "two adapters are named 'a'"),
        ("a=x:0", "the scale '0' of 'a=x:0'"),
        ("a=x:17", "the scale '17' of 'a=x:17'"),
        ("a=x:1.2.3", "the scale '1.2.3'"),
        (",".join(f"a{i}=x" for i in range(MOST_ADAPTERS + 1)), f"{MOST_ADAPTERS + 1} adapters, more than"),
        ("a" * 65 + "=x", "is not NAME=FILE"),
    ],
)
def test_what_is_wrong_is_named(text, message):
    with pytest.raises(ConfigError, match=r"^PENSTOCK_ADAPTERS") as caught:
        listed(text)
    assert message in str(caught.value)


def test_adapters_are_for_one_model_that_this_worker_computes():
    for other in (
        {"PENSTOCK_MODELS": "a=x.gguf,b=y.gguf"},
        {"PENSTOCK_ENGINE": "upstream", "PENSTOCK_UPSTREAM_URL": "http://u", "PENSTOCK_UPSTREAM_MODEL": "m"},
    ):
        with pytest.raises(ConfigError, match="PENSTOCK_ADAPTERS='a=x'"):
            load({"PENSTOCK_ADAPTERS": "a=x"} | other, None)


def test_options_are_joined_to_the_setting_and_what_is_wrong_is_quoted():
    assert joined_adapters(["a=x", "b=y:0.5"]) == "a=x,b=y:0.5"
    assert joined_adapters([]) is None
    for wrong in ("x.gguf", "a=x,b=y"):
        with pytest.raises(ConfigError, match=f"^--adapter='{wrong}'"):
            joined_adapters([wrong])

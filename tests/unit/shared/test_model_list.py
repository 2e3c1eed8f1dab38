"""Tests how PENSTOCK_MODELS lists the models that a worker holds one at a time."""

import pytest

from shared.errors import ConfigError
from shared.jobs.model_name import CountedModel, listed_models, served_names
from shared.settings.settings import load


def listed(text):
    return listed_models(load({"PENSTOCK_MODELS": text}, None))


def test_a_list_names_its_models_and_the_first_is_the_default():
    assert listed("chat=./a.gguf, org/repo:Q4_K_M") == {
        "chat": CountedModel("./a.gguf", "chat"),
        "org/repo": CountedModel("org/repo:Q4_K_M"),
    }
    assert served_names(load({"PENSTOCK_MODELS": "chat=./a.gguf,b.gguf"}, None)) == ["chat"]


def test_a_folder_has_its_files_in_order_without_further_parts_and_without_projectors(tmp_path):
    for name in ("b.gguf", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "mmproj-b.gguf", "notes.txt"):
        (tmp_path / name).touch()
    assert list(listed(str(tmp_path))) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("./nowhere", "PENSTOCK_MODELS='./nowhere' is no folder here; list the models as NAME=MODEL,..."),
        ("a=x.gguf,a=y.gguf", "two models would be served as 'a'"),
        ("./a b.gguf,./a-b.gguf", "'a b' and 'a-b' would share a queue"),
        ("x.gguf:2,y.gguf", "'x.gguf:2' is not [NAME=]MODEL"),
        (",".join(f"m{number}=x.gguf" for number in range(33)), "has 33 models, more than 32"),
    ],
)
def test_a_list_that_cannot_be_served_is_quoted(text, expected):
    with pytest.raises(ConfigError) as caught:
        listed(text)
    assert expected in str(caught.value)


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(ConfigError, match="is a folder without a GGUF file"):
        listed(str(tmp_path))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"PENSTOCK_MODEL": "x.gguf"}, "PENSTOCK_MODEL='x.gguf' is for one model; unset PENSTOCK_MODELS"),
        ({"PENSTOCK_MODEL_NAME": "x"}, "PENSTOCK_MODEL_NAME='x' is for one model; unset PENSTOCK_MODELS"),
        (
            {"PENSTOCK_ENGINE": "upstream", "PENSTOCK_UPSTREAM_URL": "http://u", "PENSTOCK_UPSTREAM_MODEL": "x"},
            "PENSTOCK_MODELS='a=x.gguf' is not for an upstream",
        ),
    ],
)
def test_settings_of_one_model_exclude_a_list(environ, expected):
    with pytest.raises(ConfigError) as caught:
        load({"PENSTOCK_MODELS": "a=x.gguf"} | environ, None)
    assert expected in str(caught.value)

"""Tests which workers `penstock up` starts for the models that it is given."""

from dataclasses import replace

import pytest

from shared.cli.stack.workers import counted_models, embedding_worker, workers_of
from shared.errors import ConfigError
from shared.jobs.model_name import CountedModel, served_names
from shared.settings.settings import load


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model.gguf", CountedModel("model.gguf")),
        ("model.gguf:2", CountedModel("model.gguf", workers=2)),
        ("org/repo:Q4_K_M", CountedModel("org/repo:Q4_K_M")),
        ("org/repo:Q4_K_M:3", CountedModel("org/repo:Q4_K_M", workers=3)),
        ("chat=org/repo@main", CountedModel("org/repo@main", "chat")),
        ("./a=b.gguf", CountedModel("./a=b.gguf")),
        ("folder/a=b.gguf:1", CountedModel("folder/a=b.gguf", workers=1)),
    ],
)
def test_a_model_may_have_a_name_and_a_number_of_workers(text, expected):
    assert counted_models([text]) == [expected]


@pytest.mark.parametrize("text", ["", "model.gguf:0", "model.gguf:1025"])
def test_a_number_of_workers_out_of_range_is_quoted(text):
    with pytest.raises(ConfigError) as caught:
        counted_models([text])
    assert str(caught.value) == f"--model={text!r} is not [NAME=]MODEL[:N] with N from 1 to 1024"


def test_the_worker_that_embeds_has_one_model_although_the_others_have_a_list(tmp_path):
    (tmp_path / "small.gguf").touch()
    settings = load({"PENSTOCK_MODELS": "chat=./a.gguf"}, None)
    own = replace(settings, **embedding_worker(settings, str(tmp_path / "small.gguf")))
    assert (own.models, served_names(own)) == ("", ["small"])


def test_listed_models_whose_names_become_the_same_in_the_store_are_refused():
    with pytest.raises(ConfigError, match=r"'a-b' and 'a/b' would share a queue"):
        workers(models="a-b=./x.gguf,a/b", engine="llama")


def workers(*models, count="auto", upstream_models=(), **changed):
    found = counted_models(models)
    first = {"model": found[0].model, "model_name": found[0].name} if found else {}
    return workers_of(replace(load({}, None), **({"engine": "sim"} | first | changed)), found, upstream_models, count)


def test_each_model_has_its_workers_in_the_order_of_the_models():
    assert [each["model_name"] for each in workers("a", "big=b:2")] == ["a", "big", "big"]


def test_one_model_has_the_workers_that_either_option_asks_for():
    assert len(workers("a:3")) == len(workers("a", count="3")) == 3


def test_an_upstream_has_a_worker_for_each_of_its_models():
    found = workers(upstream_models=["x", "y"], engine="upstream", upstream_url="http://u/v1", upstream_model="x")
    assert found == [{"upstream_model": "x"}, {"upstream_model": "y"}]


@pytest.mark.parametrize(
    ("models", "options", "expected"),
    [
        (["a:2", "b"], {"count": "2"}, "--workers='2' is for one model without a number; write --model MODEL:N"),
        (["x/a.gguf", "y/a.gguf"], {}, "'a' and 'a' would share a queue; write --model NAME=MODEL for one"),
        (["a"], {"engine": "upstream", "upstream_url": "http://u"}, "--model='a' is not for an upstream"),
        (["a"], {"upstream_models": ["x"]}, "--upstream-model='x' needs --upstream"),
        (["a", "b"], {"model_name": "c"}, "PENSTOCK_MODEL_NAME='c' names one model; write --model NAME=MODEL"),
        (["a", "b"], {"engine": "llama"}, "--model='a' is no file"),
    ],
)
def test_options_that_contradict_each_other_are_refused(models, options, expected):
    with pytest.raises(ConfigError) as caught:
        workers(*models, **options)
    assert expected in str(caught.value)


def test_an_adapter_without_a_file_and_adapters_of_several_models_are_refused(tmp_path):
    (tmp_path / "m.gguf").touch()
    model, missing = str(tmp_path / "m.gguf"), tmp_path / "x.gguf"
    with pytest.raises(ConfigError, match=r"PENSTOCK_ADAPTERS: adapter 'a' \('a=.*x.gguf'\) is no file"):
        workers(model, engine="llama", adapters=f"a={missing}")
    with pytest.raises(ConfigError, match=r"PENSTOCK_ADAPTERS='a=x' is for one model"):
        workers("a", "b", adapters="a=x")
    assert workers("a", adapters="a=x") == [{}]


def test_the_worker_that_embeds_has_no_adapters(tmp_path):
    (tmp_path / "small.gguf").touch()
    settings = load({"PENSTOCK_ADAPTERS": "a=x"}, None)
    assert embedding_worker(settings, str(tmp_path / "small.gguf"))["adapters"] == ""

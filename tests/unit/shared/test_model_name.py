"""Tests what PENSTOCK_MODEL names, and under which names the model is served."""

from dataclasses import replace

import pytest

from shared.jobs.model_name import HubName, hub_name, served_names
from shared.settings.settings import Settings


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("org/repo", HubName("org/repo")),
        ("org/repo-GGUF:Q4_K_M", HubName("org/repo-GGUF", "Q4_K_M")),
        ("org/repo:sub/model-Q8_0.gguf@v1.2", HubName("org/repo", "sub/model-Q8_0.gguf", "v1.2")),
        ("org/repo@main", HubName("org/repo", "", "main")),
        ("org/repo@refs/pr/3", HubName("org/repo", "", "refs/pr/3")),
    ],
)
def test_a_hugging_face_name_is_recognized_by_its_form(model: str, found: HubName) -> None:
    assert hub_name(model) == found


@pytest.mark.parametrize(
    "model", ["", "/models/x.gguf", "models/x.gguf", "./models/x", "../a/b", "~/m/x.gguf", "a/b/c", "x.gguf", "org/"]
)
def test_any_other_model_setting_is_a_path(model: str) -> None:
    assert hub_name(model) is None


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ({"model_name": "big, large,"}, ["big", "large"]),
        ({"model": "/models/x.gguf", "model_name": "main, old"}, ["main", "old"]),
        ({"engine": "sim", "model": "/models/x.gguf"}, ["sim"]),
        ({"engine": "upstream", "upstream_model": "org/repo"}, ["org/repo"]),
        ({"engine": "upstream", "upstream_model": "/models/tiny.Q4.gguf"}, ["tiny.Q4"]),
        ({"model": "/models/tiny-llama.Q4_K_M.gguf"}, ["tiny-llama.Q4_K_M"]),
        ({"model": "models/tiny.gguf"}, ["tiny"]),
        ({"model": "/models/big-00001-of-00003.gguf"}, ["big"]),
        ({"model": "org/repo"}, ["org/repo"]),
        ({"model": "org/repo:Q4_K_M@main"}, ["org/repo"]),
        ({"model": "org/repo:some-file.gguf"}, ["org/repo"]),
        ({}, [""]),
    ],
)
def test_the_served_names_of_a_model_come_from_its_settings_and_contain_no_path(
    settings: Settings, overrides: dict[str, str], names: list[str]
) -> None:
    assert served_names(replace(settings, **overrides)) == names  # type: ignore[arg-type]

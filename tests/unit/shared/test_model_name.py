"""What PENSTOCK_MODEL names, and the names under which it is served."""

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
def test_a_hub_name_is_told_by_its_looks(model: str, found: HubName) -> None:
    assert hub_name(model) == found


@pytest.mark.parametrize(
    "model", ["", "/models/x.gguf", "models/x.gguf", "./models/x", "../a/b", "~/m/x.gguf", "a/b/c", "x.gguf", "org/"]
)
def test_all_else_is_a_path(model: str) -> None:
    assert hub_name(model) is None


@pytest.mark.parametrize(
    ("spelled", "names"),
    [
        ({"model_name": "big, large,"}, ["big", "large"]),
        ({"model": "/models/x.gguf", "model_name": "main, old"}, ["main", "old"]),
        ({"engine": "sim", "model": "/models/x.gguf"}, ["sim"]),
        ({"model": "/models/tiny-llama.Q4_K_M.gguf"}, ["tiny-llama.Q4_K_M"]),
        ({"model": "models/tiny.gguf"}, ["tiny"]),
        ({"model": "/models/big-00001-of-00003.gguf"}, ["big"]),
        ({"model": "org/repo"}, ["org/repo"]),
        ({"model": "org/repo:Q4_K_M@main"}, ["org/repo"]),
        ({"model": "org/repo:some-file.gguf"}, ["org/repo"]),
        ({}, [""]),
    ],
)
def test_door_and_worker_name_a_model_alike_and_never_by_a_path(
    settings: Settings, spelled: dict[str, str], names: list[str]
) -> None:
    assert served_names(replace(settings, **spelled)) == names  # type: ignore[arg-type]

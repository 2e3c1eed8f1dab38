"""Tests that the modules a command requires are those that its extra installs."""

import importlib.metadata
import re
import tomllib

import pytest

from shared.cli.stack.extras import MODULES, require_engine, require_extra
from shared.errors import ConfigError
from shared.settings.engines import ENGINES
from tests.support.program import ROOT

EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_no_command_requires_the_extra_for_traces() -> None:
    assert set(EXTRAS) - set(MODULES) == {"otel"}


@pytest.mark.parametrize("extra", MODULES)
def test_an_extra_has_a_module_for_each_distribution_and_no_others(extra: str) -> None:
    wanted = {normalized(re.split(r"[<>=;\[ ]", line)[0]) for line in EXTRAS[extra]}
    of_module = importlib.metadata.packages_distributions()
    found = {module: {normalized(name) for name in of_module[module]} for module in MODULES[extra]}
    assert set().union(*found.values()) == wanted
    assert all(names & wanted for names in found.values())


def test_an_installed_extra_is_not_reported_as_missing() -> None:
    for extra in MODULES:
        require_extra(extra)
    for engine in ENGINES:
        require_engine(engine)


def test_an_engine_requires_only_modules_that_its_extra_and_the_workers_extra_install() -> None:
    for kind in ENGINES.values():
        assert set(kind.modules or ()) <= set(MODULES[kind.extra]) <= set(MODULES["worker"])


def test_only_an_engine_that_loads_a_model_needs_llama_cpp() -> None:
    for kind in ENGINES.values():
        assert ("llama_cpp" in (kind.modules or MODULES[kind.extra])) == kind.loads_model


def test_the_extra_of_the_upstream_is_a_part_of_the_workers_extra_with_the_same_versions() -> None:
    assert set(EXTRAS["upstream"]) < set(EXTRAS["worker"])


def test_a_missing_module_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODULES, "web", ("flask", "no_such_module", "nor_this"))
    with pytest.raises(ConfigError, match=r"'web' is not installed \(no_such_module, nor_this missing\)"):
        require_extra("web")

"""`penstock plan` as a program, with the settings in force and the rates that workers report."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from shared.store.store import Store
from tests.support.builders import a_heartbeat
from tests.support.in_process import InProcess
from workers.demo.random_gguf import write_random_model


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store_url: str, redis_client: redis.Redis) -> InProcess:
    """The commands on the session's store, which is empty."""
    return InProcess(monkeypatch, tmp_path, store_url)


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "small.gguf"
    write_random_model(path)
    return str(path)


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Runs the program that was to replace the process of the last command, with its settings."""
    wanted: list[tuple[list[str], dict[str, str]]] = []

    def execve(_: str, arguments: list[str], environ: dict[str, str]) -> None:
        wanted.append((arguments, environ))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)

    def run_it() -> str:
        arguments, environ = wanted.pop()
        return subprocess.run(arguments, env=environ, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout

    return run_it


# The rates are read in this process, so that workers do not stop being live while a program starts.
def test_a_plan_uses_the_settings_in_force_and_the_mean_rate_of_the_models_live_workers(
    store: Store, penstock: InProcess, executed: Callable[[], str], model: str
) -> None:
    for worker, name, rate in (("w1", "small", 400), ("w2", "small", 600), ("w3", "other", 9_000)):
        store.renew(a_heartbeat(worker, model=name, facts={"mu_wtps": rate}), [])
    options = ("--slots", "2", "--context", "512", "--prompt", "100", "--answer", "100", "--measured", "--json")
    assert penstock("plan", *options, model).returncode == 0
    plan = json.loads(executed())
    assert (plan["slots"], plan["n_ctx"], plan["kv_bytes_per_token"]) == (2, 512, 256)
    assert plan["memory"]["sum_bytes"] == sum(plan["memory"][f"{part}_bytes"] for part in ("weights", "kv", "compute"))
    # A generated token counts as four.
    assert plan["work"]["jobs_per_s"] == 1.0


def test_a_rate_is_either_given_or_measured(store: Store, penstock: InProcess, model: str) -> None:
    done = penstock("plan", model, "--rate", "5", "--measured")
    assert (done.returncode, done.stderr) == (2, "penstock: --rate=5.0 and --measured exclude each other\n")
    store.renew(a_heartbeat("w1", model="other", facts={"mu_wtps": 5}), [])
    done = penstock("plan", model, "--measured")
    assert (done.returncode, "--measured: name --prompt and --answer too" in done.stderr) == (2, True)
    done = penstock("plan", model, "--measured", "--prompt", "9", "--answer", "9")
    assert done.returncode == 2
    assert "no live worker reports a rate for the model 'small'" in done.stderr

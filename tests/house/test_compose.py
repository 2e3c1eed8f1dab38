"""Tests compose.yaml, its images and its store's configuration, as far as that is possible without containers."""

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.errors import StoreUnavailable
from shared.settings.settings import SYSTEM_WIDE, Settings, load
from shared.store.connection import open_client
from shared.store.embedded import server_binary
from shared.store.preflight import check_fitness
from tests.support.program import program

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
#: The services that run Penstock's own programs, without those that end after their work.
SERVICES = {
    name: service for name, service in COMPOSE["services"].items() if "build" in service and service["restart"] != "no"
}


def environ(service: dict[str, Any], **dotenv: str) -> dict[str, str]:
    """Return a service's environment if the user's `.env` sets these variables."""
    file = dotenv if service["env_file"] == [{"path": ".env", "required": False}] else {}
    named = {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text) for name, text in service["environment"].items()}
    # The file exists only in the containers; the service `credentials` writes it into the volume `url`.
    assert named.pop("REDIS_URL_FILE") == "/run/penstock/redis-url"
    assert "url:/run/penstock:ro" in service["volumes"]
    return file | named | {"REDIS_URL": "redis://penstock:secret@store:6379/0"}


def settings(name: str, **dotenv: str) -> Settings:
    return load(environ(SERVICES[name], **dotenv), dotenv=None)


def test_the_file_matches_the_schema_of_the_compose_specification():
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, ROOT / "compose.yaml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_logs_of_every_container_that_stays_are_bounded():
    for name, service in COMPOSE["services"].items():
        if service["restart"] != "no":
            assert service["logging"]["driver"] == "local", name
            assert set(service["logging"]["options"]) == {"max-size", "max-file"}


@pytest.mark.parametrize("name", SERVICES)
def test_the_settings_of_every_service_are_valid(name):
    settings(name)


@pytest.mark.parametrize("dotenv", [{}, {"PENSTOCK_FAIRNESS": "turns", "PENSTOCK_MAX_WAIT_MS": "4000"}])
def test_all_services_have_the_same_system_wide_settings_whatever_the_user_sets(dotenv):
    (agreed,) = {tuple(getattr(settings(name, **dotenv), field) for field in SYSTEM_WIDE) for name in SERVICES}
    assert ("turns" in agreed, 4_000 in agreed) == (bool(dotenv), bool(dotenv))


def test_the_door_serves_the_name_that_the_workers_serve():
    assert {settings(name).model_name for name in SERVICES} == {"penstock-demo"}


@pytest.mark.parametrize("name", ["web", "gate"])
def test_the_door_requires_api_keys_and_is_published_on_loopback_only(name):
    assert settings(name).auth == "required"
    assert [port.split(":")[0] for port in SERVICES[name]["ports"]] == ["127.0.0.1"]


LISTEN_SETTINGS = {
    "web": "listen",
    "gate": "gate_metrics_listen",
    "worker": "worker_listen",
    "worker-gpu": "worker_listen",
}


@pytest.mark.parametrize("name", SERVICES)
def test_the_health_check_of_every_service_uses_the_port_on_which_it_listens(name):
    (code,) = SERVICES[name]["healthcheck"]["test"][3:]
    host, port = getattr(settings(name), LISTEN_SETTINGS[name]).split(":")
    assert host == "0.0.0.0"
    assert f"'http://127.0.0.1:{port}/health'" in code


def test_the_published_port_is_the_one_on_which_the_gate_listens():
    (_, _, inside) = SERVICES["gate"]["ports"][0].split(":")
    assert settings("gate").gate_host_port == ("0.0.0.0", int(inside))


@pytest.mark.parametrize("name", SERVICES)
def test_the_command_of_every_service_is_a_penstock_command(name, tmp_path):
    command = SERVICES[name]["command"]
    assert command[0] == "penstock"
    done = program(tmp_path)(*command[1:], "--help")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_time_to_drain_before_it_is_killed(name):
    assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > (
        settings(name).drain_grace_ms / 1000 if name.startswith("worker") else 30
    )


def test_the_store_s_configuration_is_accepted_by_the_server_and_by_the_fitness_check(tmp_path):
    socket = tmp_path / "store.sock"
    server = subprocess.Popen(
        [server_binary(), ROOT / "deploy" / "valkey.conf", "--port", "0", "--unixsocket", socket],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        with open_client(f"unix://{socket}", name="penstock-test") as client:
            until_s = time.monotonic() + 10
            while True:
                try:
                    assert check_fitness(client) == []
                    break
                except StoreUnavailable:
                    assert server.poll() is None, "the server refused its configuration"
                    assert time.monotonic() < until_s
                    time.sleep(0.02)
    finally:
        server.kill()
        server.communicate()


def dockerfile(service: dict[str, Any]) -> list[str]:
    return (ROOT / service["build"]["dockerfile"]).read_text().splitlines()


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_copies_only_files_that_exist_and_are_not_ignored(name):
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [
        source
        for line in dockerfile(SERVICES[name])
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert {source, source.split("/")[0]} & allowed, source


@pytest.mark.parametrize(
    ("name", "package", "module"),
    [("web", "web", "web.app"), ("gate", "web", "web.gate"), ("worker", "workers", "workers.__main__")],
)
def test_every_image_contains_all_packages_that_its_program_imports(name, package, module, tmp_path):
    assert f"COPY {package} {package}" in dockerfile(SERVICES[name])
    for copied in ("shared", package):
        (tmp_path / copied).symlink_to(ROOT / copied)
    imports = (
        f"import sys; sys.path.insert(0, '.'); import {module}; "
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'web', 'workers'}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", imports], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str([package]), done.stderr

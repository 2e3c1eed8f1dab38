"""compose.yaml, its images and its store's configuration, as far as they can be held to account without containers."""

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
ROOMS = {name: service for name, service in COMPOSE["services"].items() if "build" in service}


def environ(service: dict[str, Any], **dotenv: str) -> dict[str, str]:
    """A service's environment where the person's `.env` names these."""
    file = dotenv if service["env_file"] == [{"path": ".env", "required": False}] else {}
    named = {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text) for name, text in service["environment"].items()}
    return file | named


def settings(name: str, **dotenv: str) -> Settings:
    return load(environ(ROOMS[name], **dotenv), dotenv=None)


def test_the_file_is_what_the_compose_specification_says():
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, ROOT / "compose.yaml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ROOMS)
def test_a_rooms_settings_are_understood(name):
    settings(name)


@pytest.mark.parametrize("dotenv", [{}, {"PENSTOCK_FAIRNESS": "turns", "PENSTOCK_MAX_WAIT_MS": "4000"}])
def test_all_rooms_agree_on_what_is_system_wide_whatever_a_person_sets(dotenv):
    (agreed,) = {tuple(getattr(settings(name, **dotenv), field) for field in SYSTEM_WIDE) for name in ROOMS}
    assert ("turns" in agreed, 4_000 in agreed) == (bool(dotenv), bool(dotenv))


def test_the_door_serves_the_name_that_the_workers_serve():
    assert {settings(name).model_name for name in ROOMS} == {"penstock-demo"}


@pytest.mark.parametrize("name", ["web", "gate"])
def test_a_door_is_not_open_and_reachable_from_this_machine_only(name):
    assert settings(name).auth == "required"
    assert [port.split(":")[0] for port in ROOMS[name]["ports"]] == ["127.0.0.1"]


LISTENS = {"web": "listen", "gate": "gate_metrics_listen", "worker": "worker_listen", "worker-gpu": "worker_listen"}


@pytest.mark.parametrize("name", ROOMS)
def test_a_rooms_health_is_asked_where_it_listens(name):
    (code,) = ROOMS[name]["healthcheck"]["test"][3:]
    host, port = getattr(settings(name), LISTENS[name]).split(":")
    assert host == "0.0.0.0"
    assert f"'http://127.0.0.1:{port}/health'" in code


def test_the_port_that_is_published_is_the_one_the_gate_listens_on():
    (_, _, inside) = ROOMS["gate"]["ports"][0].split(":")
    assert settings("gate").gate_host_port == ("0.0.0.0", int(inside))


@pytest.mark.parametrize("name", ROOMS)
def test_a_rooms_command_is_one_of_ours(name, tmp_path):
    command = ROOMS[name]["command"]
    assert command[0] == "penstock"
    done = program(tmp_path)(*command[1:], "--help")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_has_time_to_drain_before_it_is_killed(name):
    assert int(ROOMS[name]["stop_grace_period"].removesuffix("s")) > (
        settings(name).drain_grace_ms / 1000 if name.startswith("worker") else 30
    )


def test_the_stores_configuration_is_accepted_and_fit(tmp_path):
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


@pytest.mark.parametrize("name", ROOMS)
def test_an_image_copies_what_is_there_and_what_is_not_ignored(name):
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [
        source
        for line in dockerfile(ROOMS[name])
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source.split("/")[0] in allowed, source


@pytest.mark.parametrize(
    ("name", "room", "module"),
    [("web", "web", "web.app"), ("gate", "web", "web.gate"), ("worker", "workers", "workers.__main__")],
)
def test_an_image_has_all_that_its_room_imports(name, room, module, tmp_path):
    assert f"COPY {room} {room}" in dockerfile(ROOMS[name])
    for package in ("shared", room):
        (tmp_path / package).symlink_to(ROOT / package)
    imports = (
        f"import sys; sys.path.insert(0, '.'); import {module}; "
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'web', 'workers'}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", imports], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str([room]), done.stderr

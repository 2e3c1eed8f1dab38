"""Tests the profile `ops` of compose.yaml: Prometheus scrapes what runs, and Grafana shows it; nothing is published."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.settings.settings import SETTINGS, load
from tests.support.prometheus import PROMTOOL, needs_prometheus
from web.http.allowed_names import allowed_hosts

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
OPS = sorted(name for name, service in SERVICES.items() if service.get("profiles") == ["ops"])
RULES = ROOT / "deploy" / "prometheus"
#: Variables that are not settings of Penstock: those of the programs that run beside it.
OTHERS = re.compile(r"OAUTH2_PROXY_\w+|GF_\w+|POSTGRES_\w+|BOARDS|PROMETHEUS_URL")


def plain(text: str) -> str:
    """Return a text of compose.yaml with the defaults of its variables."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def scrape_jobs(name: str) -> dict[str, dict[str, Any]]:
    config = yaml.safe_load((RULES / name).read_text(encoding="utf-8"))
    return {job["job_name"]: job for job in config["scrape_configs"]}


def listening_ports(service: str) -> set[int]:
    """Return the ports on which a service's program listens."""
    named = SERVICES[service]["environment"]
    return {int(str(named[name]).rpartition(":")[2]) for name in named if name.endswith("_LISTEN")}


def test_the_profile_has_prometheus_its_key_and_grafana():
    assert set(OPS) >= {"grafana", "prometheus", "prometheus-key"}


@pytest.mark.parametrize("name", SERVICES)
def test_every_file_that_is_mounted_exists_and_every_volume_is_declared(name):
    for volume in SERVICES[name].get("volumes", []):
        source = volume.split(":")[0]
        if source == "./models":
            continue  # the user's own folder, which docker creates
        assert (ROOT / source).exists() if source.startswith("./") else source in COMPOSE["volumes"], volume


@pytest.mark.parametrize("name", SERVICES)
def test_every_setting_that_is_named_exists(name):
    known = {name for setting in SETTINGS.values() for name in (setting.name, setting.file_name)}
    named = set(SERVICES[name].get("environment", {}))
    assert [one for one in named - known if not OTHERS.fullmatch(one)] == []


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_of_others_has_a_version_and_every_port_is_on_loopback(name):
    assert "build" in SERVICES[name] or re.search(r":v?[0-9]", SERVICES[name]["image"])
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_may_gain_privileges_or_write_to_its_root(name):
    assert SERVICES[name]["read_only"] is True
    assert SERVICES[name]["security_opt"] == ["no-new-privileges:true"]
    # The store's image starts as root, hands its folder to another user, and becomes that user.
    assert SERVICES[name].get("cap_drop") == (None if name == "store" else ["ALL"])


def test_prometheus_scrapes_the_same_jobs_as_without_containers_and_only_ports_that_are_served():
    ours, theirs = scrape_jobs("compose.yml"), scrape_jobs("prometheus.yml")
    assert list(ours) == list(theirs)
    for name, job in ours.items():
        assert job.get("metrics_path") == theirs[name].get("metrics_path"), name
        for target in (target for static in job.get("static_configs", []) for target in static["targets"]):
            service, _, port = target.partition(":")
            assert int(port) in listening_ports(service), target
        for found in job.get("dns_sd_configs", []):
            for service in found["names"]:
                assert found["port"] in listening_ports(service), service


def test_the_door_serves_the_host_name_under_which_prometheus_asks_whatever_the_user_allows():
    allowed = SERVICES["web"]["environment"]["PENSTOCK_ALLOWED_HOSTS"]
    for text in (plain(allowed), re.sub(r"\$\{[^}]*\}", "api.example.org", allowed)):
        assert "web" in allowed_hosts(load({"PENSTOCK_ALLOWED_HOSTS": text}, dotenv=None))
    (job,) = scrape_jobs("compose.yml")["penstock-fleet"]["static_configs"]
    assert {target.split(":")[0] for target in job["targets"]} == {"web"}


def test_the_key_of_prometheus_is_written_where_prometheus_reads_it():
    (_, _, written) = SERVICES["prometheus-key"]["entrypoint"]
    read = scrape_jobs("compose.yml")["penstock-fleet"]["authorization"]["credentials_file"]
    assert written == read == "/run/prometheus/admin-key"
    mounted = {name for name, service in SERVICES.items() if "prometheus-key" in str(service.get("volumes", ""))}
    assert mounted == {"prometheus", "prometheus-key"}


@needs_prometheus
def test_prometheus_accepts_its_configuration(tmp_path):
    for file in RULES.glob("*.yml"):
        shutil.copy(file, tmp_path)
    text = (tmp_path / "compose.yml").read_text().replace("/run/prometheus/admin-key", "admin-key")
    (tmp_path / "compose.yml").write_text(text)
    (tmp_path / "admin-key").write_text("key")
    done = subprocess.run([PROMTOOL, "check", "config", tmp_path / "compose.yml"], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_starts_with_that_configuration_on_the_port_that_grafana_asks():
    assert "--config.file=/etc/prometheus/compose.yml" in SERVICES["prometheus"]["command"]
    (port,) = SERVICES["prometheus"]["ports"]
    assert SERVICES["grafana"]["environment"]["PROMETHEUS_URL"] == f"http://prometheus:{port.split(':')[2]}"


def test_grafana_finds_the_boards_and_the_source_that_are_provisioned():
    environ, volumes = SERVICES["grafana"]["environment"], SERVICES["grafana"]["volumes"]
    assert f"./deploy/grafana/boards:{environ['BOARDS']}:ro" in volumes
    provisioned = "".join(path.read_text() for path in (ROOT / "deploy/grafana/provisioning").glob("*/*.yml"))
    needed = set(re.findall(r"\$\{(\w+)\}", provisioned))
    assert needed
    assert needed <= set(environ)

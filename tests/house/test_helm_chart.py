"""Tests the chart of deploy/helm: helm renders it, its objects follow their schemas, and its settings are valid."""

import re
from typing import Any

import pytest
import yaml

from shared.metrics.fleet import FLEET
from shared.settings.settings import SYSTEM_WIDE, Settings, load
from tests.support.helm import CHART, KUBERNETES, Manifest, helm, needs_helm, render, violations
from tests.support.processes import ROOT
from tests.support.program import program
from web.http.allowed_names import allowed_hosts

pytestmark = needs_helm

#: Everything that the chart can do at once: two pools (one scales), a gate, and settings of all kinds. Names of objects
#: may be digits, which YAML without quotes reads as numbers.
MUCH: Manifest = {
    "images": {"pullSecrets": [{"name": "registry"}]},
    "adminKey": {"secret": "penstock-admin"},
    "settings": {"PENSTOCK_MAX_INFLIGHT": 1_048_576, "PENSTOCK_ADMISSION_SAFETY_MARGIN": 0.75},
    "drainGraceSeconds": 300,
    "door": {
        "hosts": ["api.example.org"],
        "trustedProxies": ["10.0.0.0/8"],
        "settings": {"PENSTOCK_MAX_BODY_BYTES": 2_097_152},
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "podAnnotations": {"a": "b"},
    },
    "gate": {"enabled": True},
    "secretFiles": {"PENSTOCK_DATABASE_URL_FILE": {"secret": "14", "entry": "1"}},
    "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
    "ingress": {"enabled": True, "className": "1", "tlsSecret": "2026"},
    "networkPolicy": {
        "enabled": True,
        "clients": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}],
        "prometheus": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        "egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}, {"to": [{"podSelector": {}}]}],
    },
    "backup": {"enabled": True, "storeClaim": "12", "copiesClaim": "13", "keep": 24},
    "pools": {
        "demo": {"autoscaling": {"enabled": True, "maxReplicas": 8, "backlogSeconds": 1.5}},
        "big": {
            "modelName": 'org/"big" model',
            "model": "/models/big.gguf",
            "image": {"repository": "penstock-worker-cuda", "tag": "1"},
            "replicas": 3,
            "settings": {"PENSTOCK_MAX_BATCH_SIZE": 32},
            "resources": {"limits": {"nvidia.com/gpu": 1}},
            "runtimeClassName": "nvidia",
            "cache": {"persistentVolumeClaim": {"claimName": "cache"}},
            "secretFiles": {"HF_TOKEN_PATH": {"secret": "hugging-face", "entry": "token"}},
            "env": [{"name": "HF_HUB_DISABLE_TELEMETRY", "value": "1"}],
            "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
            "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
        },
    },
}
#: The example of docs/deploy.md.
(PRINTED,) = re.findall(
    r"```yaml\n# values.yaml\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text("utf-8"), re.DOTALL
)
EXAMPLE: Manifest = yaml.safe_load(PRINTED)
#: The kinds of objects that the chart makes only if its values ask for them.
FURTHER = ("ServiceMonitor", "PodMonitor", "PrometheusRule", "Ingress", "NetworkPolicy", "CronJob")
VALUES = {"the defaults": {}, "much": MUCH, "the example": EXAMPLE}


@pytest.fixture(params=VALUES, name="manifests")
def rendered(request) -> list[Manifest]:
    return render(VALUES[request.param])


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {manifest["metadata"]["name"]: manifest for manifest in manifests if manifest["kind"] == kind}


def pod(deployment: Manifest) -> Manifest:
    spec: Manifest = deployment["spec"]["template"]["spec"]
    return spec


def container(deployment: Manifest) -> Manifest:
    (only,) = pod(deployment)["containers"]
    return dict(only)


def settings_of(deployment: Manifest, tmp_path) -> Settings:
    """Return the settings of a container's program, with the secret that it mounts."""
    environ = {}
    for variable in container(deployment)["env"]:
        environ[variable["name"]] = variable.get("value", "10.1.2.3").replace("$(POD_IP)", "10.1.2.3")
    assert len(environ) == len(container(deployment)["env"]), "a variable is set twice"
    (tmp_path / "redis-url").write_text("redis://penstock:secret@store:6379/0")
    if "PENSTOCK_DATABASE_URL_FILE" in environ:
        (tmp_path / "database-url").write_text("postgresql://penstock@db/penstock")
        environ["PENSTOCK_DATABASE_URL_FILE"] = str(tmp_path / "database-url")
    assert environ.pop("REDIS_URL_FILE") == "/run/secrets/penstock/redis-url"
    environ.pop("POD_IP", None)
    return load(environ | {"REDIS_URL_FILE": str(tmp_path / "redis-url")}, dotenv=None)


def test_helm_finds_no_mistake_in_the_chart():
    done = helm("lint", "--strict", str(CHART), values=MUCH)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kubernetes", KUBERNETES)
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_object_follows_the_schema_of_its_kind(values, kubernetes):
    manifests = render(values, kubernetes=kubernetes)
    found = {manifest["metadata"]["name"]: violations(manifest, kubernetes) for manifest in manifests}
    assert found == {name: [] for name in found}


@pytest.mark.parametrize("kind", ["Deployment", "Service", "PodDisruptionBudget", "ScaledObject", *FURTHER])
def test_the_schemas_would_find_an_unknown_field(kind):
    manifest = next(iter(of_kind(render(MUCH), kind).values()))
    manifest["spec"]["unknown"] = True
    assert violations(manifest, KUBERNETES[0]) != []


def test_every_part_has_its_objects():
    manifests = render(MUCH)
    parts = {"penstock-door", "penstock-gate", "penstock-worker-demo", "penstock-worker-big"}
    assert set(of_kind(manifests, "Deployment")) == set(of_kind(manifests, "PodDisruptionBudget")) == parts
    assert set(of_kind(manifests, "Service")) == {"penstock-door", "penstock-gate"}
    assert set(of_kind(manifests, "ScaledObject")) == {"penstock-worker-demo"}


def test_the_example_of_the_docs_runs_the_model_that_it_names_and_no_other():
    manifests = render(EXAMPLE)
    assert set(of_kind(manifests, "Deployment")) == {"penstock-door", "penstock-worker-small"}
    assert set(of_kind(manifests, "ScaledObject")) == {"penstock-worker-small"}


def test_every_service_and_every_budget_selects_the_pods_of_one_deployment(manifests):
    deployments = of_kind(manifests, "Deployment")
    for kind in ("Service", "PodDisruptionBudget"):
        for name, manifest in of_kind(manifests, kind).items():
            selector = manifest["spec"]["selector"]
            wanted = selector.get("matchLabels", selector).items()
            selected = [
                other
                for other, deployment in deployments.items()
                if wanted <= deployment["spec"]["template"]["metadata"]["labels"].items()
            ]
            assert selected == [name]


def test_the_settings_of_every_container_are_valid_and_the_system_wide_ones_agree(manifests, tmp_path):
    all_settings = [settings_of(deployment, tmp_path) for deployment in of_kind(manifests, "Deployment").values()]
    assert len({tuple(getattr(settings, field) for field in SYSTEM_WIDE) for settings in all_settings}) == 1
    assert {settings.redis_url for settings in all_settings} == {"redis://penstock:secret@store:6379/0"}


def test_numbers_keep_their_digits(tmp_path):
    deployments = of_kind(render(MUCH), "Deployment")
    door = settings_of(deployments["penstock-door"], tmp_path)
    assert (door.max_inflight, door.admission_safety_margin, door.max_body_bytes) == (1_048_576, 0.75, 2_097_152)
    assert settings_of(deployments["penstock-worker-big"], tmp_path).max_batch_size == 32


def test_the_door_serves_its_hosts_its_service_and_the_pod_s_address(tmp_path):
    door = settings_of(of_kind(render(MUCH), "Deployment")["penstock-door"], tmp_path)
    names = {"10.1.2.3", "api.example.org", "penstock-door", "penstock-door.inference", "penstock-door.inference.svc"}
    names.add("penstock-door.inference.svc.cluster.local")
    assert names <= set(allowed_hosts(door))


def test_the_arguments_of_every_container_are_a_penstock_command(manifests, tmp_path):
    for deployment in of_kind(manifests, "Deployment").values():
        command, *words = container(deployment)["args"]
        assert command == "penstock"
        done = program(tmp_path)(*words, "--help")
        assert done.returncode == 0, done.stderr


def test_every_worker_can_drain_and_every_door_can_end_its_requests_before_it_is_killed(manifests, tmp_path):
    for name, deployment in of_kind(manifests, "Deployment").items():
        grace_s = settings_of(deployment, tmp_path).drain_grace_ms / 1_000 if "worker" in name else 30 + 5
        assert pod(deployment)["terminationGracePeriodSeconds"] >= grace_s + 10


def test_every_probe_uses_a_route_that_exists_and_a_port_that_is_served(manifests, tmp_path):
    for name, deployment in of_kind(manifests, "Deployment").items():
        settings, of = settings_of(deployment, tmp_path), container(deployment)
        ports = {port["name"]: port["containerPort"] for port in of["ports"]}
        served = {"door": settings.listen, "gate": settings.gate_metrics_listen, "worker": settings.worker_listen}
        for probe in ("livenessProbe", "readinessProbe"):
            asked = of[probe]["httpGet"]
            assert served[name.split("-")[1]] == f"0.0.0.0:{ports[asked['port']]}"
            # A door without workers must answer: its refusals say when to retry.
            ready = probe == "readinessProbe" and "worker" in name
            assert asked["path"] == ("/health/ready" if ready else "/health")


def test_no_container_may_be_root_write_to_its_root_or_gain_a_right(manifests):
    for deployment in of_kind(manifests, "Deployment").values():
        assert pod(deployment)["securityContext"]["runAsNonRoot"] is True
        assert pod(deployment)["automountServiceAccountToken"] is False
        assert pod(deployment)["enableServiceLinks"] is False
        security = container(deployment)["securityContext"]
        assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
        assert security["capabilities"] == {"drop": ["ALL"]}


def test_every_mount_has_its_volume_and_no_secret_is_in_the_environment(manifests):
    for deployment in of_kind(manifests, "Deployment").values():
        volumes = {volume["name"] for volume in pod(deployment)["volumes"]}
        assert {mount["name"] for mount in container(deployment)["volumeMounts"]} == volumes
        assert not any("secretKeyRef" in str(variable) for variable in container(deployment)["env"])


def test_a_pool_scales_by_its_queued_work_and_keeps_the_workers_that_are_busy():
    (scaled,) = of_kind(render(MUCH), "ScaledObject").values()
    spec = scaled["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 8)
    backlog, busy = (trigger["metadata"] for trigger in spec["triggers"])
    assert (backlog["query"], backlog["threshold"]) == (
        'max(penstock_pool_backlog_seconds{model_name="penstock-demo"})',
        "1.5",
    )
    assert (busy["query"], busy["threshold"]) == ('max(penstock_pool_busy_ratio{model_name="penstock-demo"})', "1")
    # `Value` and not `AverageValue`: the figures are ratios of the whole pool, not sums over its workers.
    assert {trigger["metricType"] for trigger in spec["triggers"]} == {"Value"}
    known = {row.name: row.labels for row in FLEET}
    for query in (backlog["query"], busy["query"]):
        (name,) = re.findall(r"penstock_\w+", query)
        assert known[name] == ("model_name",)


def test_a_query_that_finds_nothing_removes_no_workers():
    # By default, KEDA takes an empty answer of Prometheus for 0, and a fallback for the exact number of replicas.
    spec = of_kind(render(MUCH), "ScaledObject")["penstock-worker-demo"]["spec"]
    assert {trigger["metadata"]["ignoreNullValues"] for trigger in spec["triggers"]} == {"false"}
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert spec["fallback"]["replicas"] == spec["minReplicaCount"]


def test_an_autoscaler_and_the_chart_do_not_both_set_the_number_of_workers():
    deployments = of_kind(render(MUCH), "Deployment")
    assert "replicas" not in deployments["penstock-worker-demo"]["spec"]
    assert deployments["penstock-worker-big"]["spec"]["replicas"] == 3


def refusal(values: dict[str, Any]) -> str:
    done = helm("template", "penstock", str(CHART), values=values)
    assert done.returncode != 0
    return done.stderr


def test_a_pool_that_could_scale_to_no_worker_is_refused():
    message = refusal({"pools": {"demo": {"autoscaling": {"enabled": True, "minReplicas": 0}}}})
    assert "pools.demo.autoscaling.minReplicas is 0, but must be at least 1" in message


@pytest.mark.parametrize("name", ["REDIS_URL", "PENSTOCK_DRAIN_GRACE_MS"])
def test_a_setting_that_the_chart_makes_itself_is_refused_among_the_settings(name):
    assert f"the setting {name} is made from other values" in refusal({"settings": {name: "1"}})


def test_objects_that_need_other_programs_are_made_only_if_they_are_asked_for():
    assert {manifest["kind"] for manifest in render({})} == {"Deployment", "Service", "PodDisruptionBudget"}
    assert {manifest["kind"] for manifest in render(MUCH)} >= set(FURTHER)


def test_every_monitor_selects_pods_or_a_service_of_the_chart_by_a_port_that_these_have():
    manifests = render(MUCH)
    (monitor,) = of_kind(manifests, "ServiceMonitor").values()
    service = of_kind(manifests, "Service")["penstock-door"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {end["port"] for end in monitor["spec"]["endpoints"]} == {port["name"] for port in service["spec"]["ports"]}
    fleet = monitor["spec"]["endpoints"][1]
    assert (fleet["path"], fleet["authorization"]["credentials"]["name"]) == ("/metrics/fleet", "penstock-admin")
    jobs = {end["relabelings"][0]["replacement"] for end in monitor["spec"]["endpoints"]}
    for pods in of_kind(manifests, "PodMonitor").values():
        (end,) = pods["spec"]["podMetricsEndpoints"]
        jobs.add(end["relabelings"][0]["replacement"])
        selected = [name for name, of in of_kind(manifests, "Deployment").items() if selects(pods, of)]
        assert selected
        for name in selected:
            assert end["port"] in {port["name"] for port in container(of_kind(manifests, "Deployment")[name])["ports"]}
    configured = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    assert jobs == {job["job_name"] for job in configured}


def selects(monitor: Manifest, deployment: Manifest) -> bool:
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selector = monitor["spec"]["selector"]
    among = all(labels[each["key"]] in each["values"] for each in selector.get("matchExpressions", []))
    return among and bool(selector["matchLabels"].items() <= labels.items())


def test_the_rules_are_those_of_the_folder_for_prometheus():
    (rules,) = of_kind(render(MUCH), "PrometheusRule").values()
    files = [ROOT / "deploy" / "prometheus" / f"{name}.yml" for name in ("recording", "alerts", "disk")]
    assert rules["spec"]["groups"] == [
        group for file in files for group in yaml.safe_load(file.read_text("utf-8"))["groups"]
    ]


def test_every_part_has_a_policy_and_only_its_own_ports_can_be_reached():
    manifests = render(MUCH)
    policies, deployments = of_kind(manifests, "NetworkPolicy"), of_kind(manifests, "Deployment")
    assert set(policies) == set(deployments)
    for name, policy in policies.items():
        labels = deployments[name]["spec"]["template"]["metadata"]["labels"]
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
        ports = {port["name"] for port in container(deployments[name])["ports"]}
        reached = {port["port"] for entry in policy["spec"]["ingress"] for port in entry["ports"]}
        assert reached == ports
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    closed = of_kind(render({"networkPolicy": {"enabled": True}}), "NetworkPolicy")["penstock-worker-demo"]["spec"]
    assert (closed["policyTypes"], "ingress" in closed, "egress" in closed) == (["Ingress"], False, False)


def test_the_ingress_leads_the_hosts_of_the_door_to_its_service():
    (ingress,) = of_kind(render(MUCH), "Ingress").values()
    (rule,) = ingress["spec"]["rules"]
    assert rule["host"] == "api.example.org"
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": "penstock-door", "port": {"name": "http"}}


def test_a_secret_is_mounted_as_the_file_that_its_setting_names(tmp_path):
    big = of_kind(render(MUCH), "Deployment")["penstock-worker-big"]
    environ = {variable["name"]: variable.get("value") for variable in container(big)["env"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container(big)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod(big)["volumes"]}
    for name, secret in (("PENSTOCK_DATABASE_URL_FILE", "14"), ("HF_TOKEN_PATH", "hugging-face")):
        folder, _, file = environ[name].rpartition("/")
        mounted = volumes[mounts[folder]]["secret"]
        assert (mounted["secretName"], mounted["items"][0]["path"]) == (secret, file)
    assert environ["HF_HUB_DISABLE_TELEMETRY"] == "1"


def test_downloads_and_compiled_kernels_are_kept_in_the_cache_of_a_pool():
    deployments = of_kind(render(MUCH), "Deployment")
    big, demo = deployments["penstock-worker-big"], deployments["penstock-worker-demo"]
    environ = {variable["name"]: variable.get("value") for variable in container(big)["env"]}
    (mounted,) = (mount["mountPath"] for mount in container(big)["volumeMounts"] if mount["name"] == "cache")
    assert environ["HF_HOME"].startswith(mounted)
    assert environ["CUDA_CACHE_PATH"].startswith(mounted)
    assert pod(big)["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in pod(demo)


def test_backups_run_the_programs_of_deploy_and_cannot_change_the_store():
    manifests = render(MUCH)
    (job,) = of_kind(manifests, "CronJob").values()
    spec = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (only,) = spec["containers"]
    assert only["command"] == ["sh", "/programs/keep_backups.sh", "/data", "/copies", "24"]
    read_only = {mount["name"]: mount.get("readOnly", False) for mount in only["volumeMounts"]}
    assert read_only == {"programs": True, "data": True, "copies": False}
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert only["securityContext"]["readOnlyRootFilesystem"] is True
    programs = of_kind(manifests, "ConfigMap")["penstock-backup"]["data"]
    for name, text in programs.items():
        assert text.strip() == (ROOT / "deploy" / name).read_text("utf-8").strip()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"monitoring": {"enabled": True}}, "monitoring.enabled needs monitoring.key.secret or adminKey.secret"),
        ({"ingress": {"enabled": True}}, "ingress.enabled needs door.hosts"),
        ({"backup": {"enabled": True, "storeClaim": "store"}}, "backup.copiesClaim"),
    ],
)
def test_a_part_that_lacks_a_value_is_refused_with_its_name(values, message):
    assert message in refusal(values)

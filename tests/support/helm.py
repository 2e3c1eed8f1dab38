"""Renders the chart of deploy/helm with the real `helm`, and checks objects against schemas of Kubernetes and KEDA."""

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.processes import ROOT

CHART = ROOT / "deploy" / "helm" / "penstock"
#: `make helm` installs the program and the schemas here.
_INSTALLED = ROOT / "build" / "helm"
_SCHEMAS = _INSTALLED / "kubernetes_validate" / "kubernetes-json-schema"
HELM = shutil.which("helm", path=f"{_INSTALLED / 'bin'}:{os.environ.get('PATH', '')}") or ""
#: If TESTS_NEED names helm, as in continuous integration, the tests fail without it instead of being skipped.
needs_helm = pytest.mark.skipif(
    not (HELM and _SCHEMAS.is_dir()) and "helm" not in os.environ.get("TESTS_NEED", "").split(),
    reason="no helm on this machine (`make helm` installs it)",
)
#: The oldest and the newest version of Kubernetes for which the chart is checked.
KUBERNETES = ("1.29.0", "1.37.0")

#: An object of Kubernetes, as YAML says it.
Manifest = dict[str, Any]


def helm(*arguments: str, values: Manifest | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm, with values as a file would have them."""
    stdin = None if values is None else json.dumps(values)
    more = [] if values is None else ["--values", "-"]
    return subprocess.run([HELM, *arguments, *more], input=stdin, capture_output=True, text=True, check=False)


def render(
    values: Manifest | None = None, *, release: str = "penstock", kubernetes: str = KUBERNETES[0]
) -> list[Manifest]:
    """Return all objects of a release. Raises AssertionError with helm's message if the chart refuses the values."""
    where = ["--namespace", "inference", "--kube-version", kubernetes]
    done = helm("template", release, str(CHART), *where, values=values or {})
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def violations(manifest: Manifest, kubernetes: str) -> list[str]:
    """Return where an object violates its schema, in which unknown fields are errors."""
    # Not at the top: every process that collects tests would import it, which takes two seconds of CPU time.
    import jsonschema
    import referencing

    if manifest["apiVersion"].startswith("keda.sh/"):
        validator = jsonschema.Draft202012Validator(_keda_schema(), registry=referencing.Registry())
    elif manifest["apiVersion"].startswith("monitoring.coreos.com/"):
        validator = jsonschema.Draft202012Validator(_MONITORING[manifest["kind"]], registry=referencing.Registry())
    else:
        folder = _SCHEMAS / f"v{kubernetes}-local-strict"
        group = manifest["apiVersion"].replace(".k8s.io", "").replace("/", "-")
        schema = json.loads((folder / f"{manifest['kind'].lower()}-{group}.json").read_text(encoding="utf-8"))
        registry = _definitions(folder) @ referencing.Registry()
        validator = jsonschema.Draft202012Validator(schema, registry=registry)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]


def _fields(required: tuple[str, ...] = (), **properties: Any) -> Manifest:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_TEXT: Manifest = {"type": "string"}
_TEXTS: Manifest = {"type": "object", "additionalProperties": _TEXT}
_SELECTOR = _fields(
    matchLabels=_TEXTS,
    matchExpressions={
        "type": "array",
        "items": _fields(
            ("key", "operator"), key=_TEXT, operator={"enum": ["In"]}, values={"type": "array", "items": _TEXT}
        ),
    },
)
_ENDPOINT = _fields(
    ("port",),
    port=_TEXT,
    path=_TEXT,
    interval={"type": "string", "pattern": "^[0-9]+s$"},
    authorization=_fields(type=_TEXT, credentials=_fields(("name", "key"), name=_TEXT, key=_TEXT)),
    relabelings={"type": "array", "items": _fields(targetLabel=_TEXT, replacement=_TEXT)},
)
_RULE = _fields(
    ("expr",), alert=_TEXT, record=_TEXT, expr=_TEXT, labels=_TEXTS, annotations=_TEXTS, **{"for": {"type": "string"}}
)
_GROUP = _fields(("name", "rules"), name=_TEXT, interval=_TEXT, rules={"type": "array", "items": _RULE})


def _object(spec: Manifest) -> Manifest:
    metadata = _fields(("name",), name=_TEXT, labels=_TEXTS)
    return _fields(
        ("spec",), apiVersion={"const": "monitoring.coreos.com/v1"}, kind=_TEXT, metadata=metadata, spec=spec
    )


#: The fields of the Prometheus Operator's API that the chart may use, as its reference lists them.
_MONITORING = {
    "ServiceMonitor": _object(
        _fields(("selector", "endpoints"), selector=_SELECTOR, endpoints={"type": "array", "items": _ENDPOINT})
    ),
    "PodMonitor": _object(
        _fields(
            ("selector", "podMetricsEndpoints"),
            selector=_SELECTOR,
            podMetricsEndpoints={"type": "array", "items": _ENDPOINT},
        )
    ),
    "PrometheusRule": _object(_fields(groups={"type": "array", "items": _GROUP})),
}


@cache
def _definitions(folder: Path) -> Any:
    import referencing
    import referencing.jsonschema

    contents = json.loads((folder / "_definitions.json").read_text(encoding="utf-8"))
    return referencing.Resource.from_contents(contents, referencing.jsonschema.DRAFT202012)


@cache
def _keda_schema() -> Manifest:
    path = ROOT / "tests" / "vendored" / "keda" / "keda.sh_scaledobjects.yaml"
    (version,) = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["versions"]
    return _closed(version["schema"]["openAPIV3Schema"])


def _closed(schema: Any) -> Any:
    """Return the schema with unknown fields forbidden where it lists fields; Kubernetes would drop them silently."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) for name, part in schema.items()}
    return closed | ({"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {})

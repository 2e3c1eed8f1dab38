"""Tests which packages the bill of materials contains."""

from importlib import metadata

from tools.sbom import keep_locked, locked_versions, normalize


def described(*packages: tuple[str, str], depends: dict[str, list[str]]) -> dict:
    components = [{"bom-ref": f"{name}=={version}", "name": name, "version": version} for name, version in packages]
    edges = [{"ref": ref, "dependsOn": on} for ref, on in depends.items()]
    return {"metadata": {"component": {"bom-ref": "root"}}, "components": components, "dependencies": edges}


def test_only_locked_packages_and_the_dependencies_between_them_are_kept():
    bom = described(
        ("Flask", "3.1"),
        ("pytest", "9"),
        ("redis", "8.0"),
        depends={"root": ["Flask==3.1", "pytest==9"], "pytest==9": ["Flask==3.1"], "Flask==3.1": ["redis==8.0"]},
    )
    kept = keep_locked(bom, {"flask": {"3.1"}, "redis": {"8.1"}})
    assert [one["name"] for one in kept["components"]] == ["Flask"]
    assert kept["dependencies"] == [
        {"ref": "root", "dependsOn": ["Flask==3.1"]},
        {"ref": "Flask==3.1", "dependsOn": []},
    ]


def test_the_packages_that_penstock_requires_are_in_the_lock_files():
    pinned = locked_versions()
    required = {normalize(name) for name in ("redis", "rq", "flask", "gunicorn", "llama-cpp-python", "pydantic")}
    assert required <= set(pinned)
    for name in required:
        assert metadata.version(name) in pinned[name] or name == "rq"

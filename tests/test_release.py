"""What a release promises: files pinned by hash, a bill of materials, and the same bytes from the same commit."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import uuid
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "release"))

import build  # noqa: E402
import lock  # noqa: E402
import sbom  # noqa: E402

EPOCH = 1_700_000_000


def pinned() -> dict[str, str]:
    """Canonical name -> version, of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if "==" in line]
    return {lock.canonical(name): version for name, version in pairs}


@pytest.mark.parametrize("name", lock.LOCKS)
def test_lock_agrees_with_the_constraints_and_is_closed(name):
    found, versions = lock.read(lock.FOLDER / f"{name}.lock"), pinned()
    assert {n: version for n, (version, _) in found.items()} == {n: versions.get(n) for n in found}
    assert {lock.canonical(re.match(r"[\w.-]+", line)[0]) for line in lock.wanted(lock.LOCKS[name])} <= found.keys()
    for each in found:
        assert set(sbom.needs(each, set(versions))) <= found.keys() | conditional(each), "run: python release/lock.py"


def conditional(name: str) -> set[str]:
    """What a distribution needs on other systems only."""
    lines = [line for line in importlib.metadata.requires(name) or [] if ";" in line]
    return {lock.canonical(re.match(r"[\w.-]+", line)[0]) for line in lines}


@pytest.mark.parametrize("name", lock.LOCKS)
def test_lock_is_complete_and_names_no_place(name):
    text = (lock.FOLDER / f"{name}.lock").read_text()
    found = lock.read(lock.FOLDER / f"{name}.lock")
    assert text == lock.text(found, lock.LOCKS[name])
    assert len(found) >= 8 and "://" not in text and "@" not in text


def test_larger_locks_hold_the_smaller_ones():
    base, train, tools = (lock.read(lock.FOLDER / f"{name}.lock") for name in ("base", "train", "tools"))
    assert base.items() <= train.items() <= tools.items()


def test_bill_of_materials_has_the_structure_of_cyclonedx_1_6():
    bill = sbom.document(EPOCH, "ab" * 32)
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert uuid.UUID(bill["serialNumber"].removeprefix("urn:uuid:")).version == 5
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert bill.keys() <= {
        "bomFormat",
        "specVersion",
        "serialNumber",
        "version",
        "metadata",
        "components",
        "dependencies",
    }
    components = [bill["metadata"]["component"], *bill["components"]]
    for each in components:
        assert each.keys() <= {"type", "bom-ref", "name", "version", "scope", "hashes", "licenses", "purl"}
        assert each["type"] in ("application", "library") and each["name"] and each["version"]
        assert each["purl"] == each["bom-ref"] == f"pkg:pypi/{each['name']}@{each['version']}"
        assert all(h["alg"] == "SHA-256" and re.fullmatch("[0-9a-f]{64}", h["content"]) for h in each["hashes"])
        assert each["licenses"], each["name"]
        for licence in each["licenses"]:
            kind = licence.get("license", {})
            assert licence.keys() == {"expression"} or kind.keys() == {"id"} or kind.keys() == {"name"}
        assert len(each["licenses"]) == 1 or not any("expression" in licence for licence in each["licenses"])
    references = [each["bom-ref"] for each in components]
    assert len(set(references)) == len(references)
    assert [edge["ref"] for edge in bill["dependencies"]] == references
    assert {ref for edge in bill["dependencies"] for ref in edge["dependsOn"]} <= set(references)


def test_bill_of_materials_says_what_the_base_is_and_what_each_needs():
    bill = sbom.document(EPOCH)
    scopes = {each["name"]: each["scope"] for each in bill["components"]}
    assert (scopes["numpy"], scopes["onnxruntime"], scopes["numba"]) == ("required", "required", "optional")
    edges = {edge["ref"]: edge["dependsOn"] for edge in bill["dependencies"]}
    numba = next(ref for ref in edges if ref.startswith("pkg:pypi/numba@"))
    assert {re.match(r"pkg:pypi/([\w-]+)@", ref)[1] for ref in edges[numba]} == {"llvmlite", "numpy"}
    assert bill == sbom.document(EPOCH) != sbom.document(EPOCH + 1)


def test_same_commit_gives_the_same_bytes(tmp_path, monkeypatch):
    made = []
    for name, mask, zone in (("a", 0o022, "UTC"), ("some/where else", 0o077, "Asia/Tokyo")):
        monkeypatch.setenv("TZ", zone)
        before = os.umask(mask)
        try:
            made.append([path.read_bytes() for path in build.main(tmp_path / name)])
        finally:
            os.umask(before)
    assert made[0] == made[1]
    listed = dict(reversed(line.split()) for line in made[0][2].decode().splitlines())
    assert {name: build.sha256(tmp_path / "a" / name) for name in listed} == listed and len(listed) == 2


def test_date_of_the_release_is_what_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    _, bill, _ = build.main(tmp_path)
    assert json.loads(bill.read_text())["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"


@pytest.mark.long
def test_wheel_and_its_hashed_files_are_an_installation(tmp_path):
    built, *_ = build.main(tmp_path / "dist")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]

    def install(*words: str | Path) -> None:
        subprocess.run([*pip, *words], cwd=tmp_path, env=environment, check=True)

    install("--require-hashes", "--requirement", lock.FOLDER / "base.lock")
    install("--no-deps", "--no-index", built)

    def run(*words: str) -> subprocess.CompletedProcess:
        command = [python, "-m", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert run("deploy.inspect", "policy=quad_any").returncode == 0
    flown = run("deploy.run", "policy=quad_any", "robot=racer")
    assert flown.returncode == 2
    assert flown.stderr == "error: the package 'numba' is not installed; pip install 'sim2metal[train]' brings it\n"
    install("--require-hashes", "--requirement", lock.FOLDER / "train.lock")
    done = run("policies.train", "quality=quick", "report=false", "out=run")
    assert done.returncode == 0, done.stderr
    assert run("deploy.run", "policy=run/policy.onnx", "seconds=2").returncode == 0

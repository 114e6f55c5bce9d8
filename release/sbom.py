"""The bill of materials of an installation, CycloneDX 1.6 as JSON: what requirements/train.lock installs with us.

Same commit, same bytes: no clock and no random number, the serial number follows from the content.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import tomllib
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lock

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # RFC 4122's for URLs
SPDX = {  # what the fields of older metadata call them
    "MIT": "MIT",
    "MIT License": "MIT",
    "Apache License 2.0": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD-3-Clause": "BSD-3-Clause",
}


def reference(name: str, version: str) -> str:
    """The package URL, which is also the name inside the document."""
    return f"pkg:pypi/{lock.canonical(name)}@{version}"


def licences(name: str) -> list[dict[str, Any]]:
    """As the installed distribution states them: an SPDX expression, or its own words."""
    about = importlib.metadata.metadata(name)
    if expression := about.get("License-Expression"):
        return [{"expression": expression}]
    stated = (about.get("License") or "").strip()
    if stated in SPDX:
        return [{"license": {"id": SPDX[stated]}}]
    classifiers = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
    words = classifiers or [line for line in [stated.partition("\n")[0]] if line]
    return [{"license": {"name": word}} for word in words]


def needs(name: str, among: set[str]) -> list[str]:
    """Those of `among` that the installed distribution asks for, whatever their conditions."""
    lines = importlib.metadata.requires(name) or []
    plain = [line for line in lines if "extra ==" not in line.replace("'", '"')]
    found = [re.match(r"[\w.-]+", line) for line in plain]
    return sorted({lock.canonical(match[0]) for match in found if match} & among)


def component(name: str, version: str, digest: str, scope: str) -> dict[str, Any]:
    """One package."""
    if (there := importlib.metadata.version(name)) != version:
        raise SystemExit(f"error: {name} {there} is installed, the lock says {version}: make .venv anew")
    made: dict[str, Any] = {"type": "library", "bom-ref": reference(name, version), "name": name, "version": version}
    made |= {"scope": scope, "hashes": [{"alg": "SHA-256", "content": digest}]}
    return made | {"licenses": licences(name), "purl": reference(name, version)}


def document(epoch: int, wheel: str = "") -> dict[str, Any]:
    """The bill; `epoch` is its date (s since 1970), `wheel` the SHA-256 of ours where it is built."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = reference(project["name"], project["version"])
    base, found = lock.read(lock.FOLDER / "base.lock"), lock.read(lock.FOLDER / "train.lock")
    itself: dict[str, Any] = {"type": "application", "bom-ref": ours, "name": project["name"]}
    itself |= {"version": project["version"], "licenses": [{"license": {"id": project["license"]}}], "purl": ours}
    if wheel:
        itself["hashes"] = [{"alg": "SHA-256", "content": wheel}]
    components = [component(n, *found[n], "required" if n in base else "optional") for n in sorted(found)]
    asked = {lock.canonical(match[0]) for line in lock.wanted(("train",)) if (match := re.match(r"[\w.-]+", line))}
    tree = {ours: sorted(asked), **{reference(n, found[n][0]): needs(n, set(found)) for n in sorted(found)}}
    edges = [{"ref": ref, "dependsOn": [reference(n, found[n][0]) for n in names]} for ref, names in tree.items()]
    bill: dict[str, Any] = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}
    bill["metadata"] = {"timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    bill["metadata"]["component"] = itself
    bill |= {"components": components, "dependencies": edges}
    return bill | {"serialNumber": uuid.uuid5(NAMESPACE, json.dumps(bill, sort_keys=True)).urn}

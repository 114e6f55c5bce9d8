"""DDS security: what nodes open is what their enclaves may, and without it they say so in one line."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.deploy.ros2.bench import ROOT, graph
from tests.deploy.ros2.domain import own_domain

pytestmark = pytest.mark.timed

POLICIES = ROOT / "launch" / "security" / "policies.xml"
NODES = ("robot", "supervisor", "policy")
RULES = {  # what sros2 takes: element -> its attributes, its children
    "policy": ({"version"}, {"enclaves"}),
    "enclaves": (set(), {"enclave"}),
    "enclave": ({"path"}, {"profiles"}),
    "profiles": (set(), {"profile"}),
    "profile": ({"ns", "node"}, {"topics", "services"}),
    "topics": ({"publish", "subscribe"}, {"topic"}),
    "services": ({"reply", "request"}, {"service"}),
    "topic": (set(), set()),
    "service": (set(), set()),
}


def allowed() -> dict[str, dict[str, list[str]]]:
    """By node and verb: the names, resolved, with their wildcards."""
    found: dict[str, dict[str, list[str]]] = {}
    for enclave in ET.parse(POLICIES).getroot().iter("enclave"):
        (profile,) = enclave.iter("profile")
        name, ns = profile.attrib["node"], profile.attrib["ns"]
        assert enclave.attrib["path"] == f"/sim2metal/{name}"
        verbs = found.setdefault(name, {})
        for group in profile:
            ((verb, value),) = group.attrib.items()
            assert value == "ALLOW" and verb not in verbs
            texts = [(item.text or "").strip() for item in group]
            verbs[verb] = [text if text.startswith("/") else f"{ns.rstrip('/')}/{text}" for text in texts]
            assert len(texts) == len({*texts}), f"{name} {verb}: twice the same"
    return found


def test_the_policies_are_what_sros2_takes():
    root = ET.parse(POLICIES).getroot()
    assert root.tag == "policy" and root.attrib == {"version": "0.2.0"}
    for element in root.iter():
        attributes, children = RULES[element.tag]
        assert {*element.attrib} <= attributes and {child.tag for child in element} <= children
        assert bool(children) == (len(element) > 0)
    assert {*allowed()} == {*NODES, "operator"}


def test_nodes_open_what_their_enclaves_may_and_only_the_supervisor_arms(tmp_path: Path):
    path = tmp_path / "arming.key"
    subprocess.run([sys.executable, "-m", "deploy.ros2.key", f"out={path}"], cwd=ROOT, check=True, capture_output=True)
    key, may = {"key": str(path)}, allowed()
    with graph(robot=key, supervisor=key, policy=key) as lab:
        lab.until(lambda: lab.trigger("robot/reset").success and lab.change(1), "configured")
        lab.until(lambda: {*NODES} <= {*lab.node.get_node_names()}, "all are known")
        lab.rest(0.5)
        for name in NODES:
            opened = {
                "publish": lab.node.get_publisher_names_and_types_by_node(name, "/"),
                "subscribe": lab.node.get_subscriber_names_and_types_by_node(name, "/"),
                "reply": lab.node.get_service_names_and_types_by_node(name, "/"),
                "request": lab.node.get_client_names_and_types_by_node(name, "/"),
            }
            for verb, topics in opened.items():
                for topic, _ in topics:
                    fits = any(fnmatch(topic, rule) for rule in may[name].get(verb, []))
                    assert fits, f"{name} may not {verb} {topic}"
    for verb, name, who in (("publish", "/armed", "supervisor"), ("publish", "/armed_beat", "supervisor")):
        assert [node for node, verbs in may.items() if name in verbs.get(verb, [])] == [who]
    assert [node for node, verbs in may.items() if "/command" in verbs.get("publish", [])] == ["policy"]


@pytest.mark.parametrize("keystore", [False, True])
def test_without_security_libraries_a_node_says_so_in_one_line(keystore: bool, tmp_path: Path):
    folder = tmp_path / "enclaves"
    folder.mkdir()
    for name in ("identity_ca.cert", "cert", "key", "permissions_ca.cert"):
        (folder / f"{name}.pem").write_text("not one")
    for name in ("governance", "permissions"):
        (folder / f"{name}.p7s").write_text("not one")
    secure = {"ROS_SECURITY_ENABLE": "true", "ROS_SECURITY_STRATEGY": "Enforce"}
    secure |= {"ROS_SECURITY_KEYSTORE": str(tmp_path)} if keystore else {}
    with own_domain() as domain:
        environment = {**os.environ, **secure, "ROS_DOMAIN_ID": str(domain)}
        command = [sys.executable, "-m", "deploy.ros2.supervisor_node"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60.0)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ROS_SECURITY_ENABLE=true, but ROS 2 could not begin (")
    assert "no security libraries" in last and "signed arming" in last

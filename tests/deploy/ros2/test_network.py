"""How far nodes are heard: this machine, unless asked otherwise; what another computer finds, also one that insists."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from deploy.ros2.node.network import LOOPBACK, MIDDLEWARE, NETWORK, PEERS, PROFILES, RANGE, keep_to_this_machine
from tests.deploy.ros2.bench import ROOT
from tests.deploy.ros2.domain import own_domain

OURS, THEIRS = "10.123.77.1", "10.123.77.2"
HERE = {RANGE: "SYSTEM_DEFAULT", PROFILES[0]: str(LOOPBACK)}  # what keeps nodes to this machine


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, HERE),
        ({NETWORK: "0"}, {NETWORK: "0", **HERE}),
        ({NETWORK: "1"}, {NETWORK: "1"}),
        ({NETWORK: "True"}, {NETWORK: "True"}),
        ({RANGE: "SUBNET"}, {RANGE: "SUBNET"}),
        ({RANGE: "OFF"}, {RANGE: "OFF"}),
        ({RANGE: "LOCALHOST"}, HERE),
        (HERE, HERE),
        ({MIDDLEWARE: "rmw_fastrtps_dynamic_cpp"}, {MIDDLEWARE: "rmw_fastrtps_dynamic_cpp", **HERE}),
        ({MIDDLEWARE: "rmw_cyclonedds_cpp"}, {MIDDLEWARE: "rmw_cyclonedds_cpp", RANGE: "LOCALHOST"}),
        ({PEERS: "10.0.0.7"}, {PEERS: "10.0.0.7", RANGE: "LOCALHOST"}),
        ({PROFILES[1]: "mine.xml"}, {PROFILES[1]: "mine.xml", RANGE: "LOCALHOST"}),
    ],
)
def test_who_has_said_how_far_is_not_overruled(given, wanted):
    told = dict(given)
    keep_to_this_machine(told)
    assert told == wanted


@contextmanager
def supervisor(domain: int, **environment: str) -> Iterator[int]:
    """A node as its user starts it, with nothing set but the domain; its process id, once it listens."""
    kept = {k: v for k, v in os.environ.items() if k not in (RANGE, NETWORK, PEERS, *PROFILES)}
    kept |= {"ROS_DOMAIN_ID": str(domain), "RCUTILS_COLORIZED_OUTPUT": "0", **environment}
    process = subprocess.Popen([sys.executable, "-m", "deploy.ros2.supervisor_node"], cwd=ROOT, env=kept)
    try:
        end = time.monotonic() + 20.0
        while not listening(process.pid, domain):
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.05)
        time.sleep(0.3)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def listening(process: int, domain: int) -> set[str]:
    """The addresses on which a process listens for this domain: RTPS 2.5, 9.6.2.3 says which ports those are."""
    sockets = set()
    for fd in Path(f"/proc/{process}/fd").iterdir():
        try:
            sockets.add(os.readlink(fd))
        except OSError:
            continue
    found, ports = set(), range(7400 + 250 * domain, 7400 + 250 * (domain + 1))
    for kind in ("udp", "udp6"):
        for line in Path(f"/proc/{process}/net/{kind}").read_text().splitlines()[1:]:
            columns = line.split()
            address, _, port = columns[1].partition(":")
            if int(port, 16) in ports and f"socket:[{columns[9]}]" in sockets:
                found.add(".".join(str(byte) for byte in reversed(bytes.fromhex(address))))
    return found


def shares_memory(process: int) -> bool:
    """Whether Fast DDS uses shared memory there, by the threads that it names after it."""
    return any(task.read_text().startswith("dds.shm") for task in Path(f"/proc/{process}/task").glob("*/comm"))


@pytest.mark.timed
def test_nodes_listen_on_the_loopback_only_unless_told_otherwise():
    with own_domain() as domain, supervisor(domain) as alone, supervisor(domain, **{NETWORK: "1"}) as open_to_all:
        assert listening(alone, domain) == {"127.0.0.1"}
        assert "0.0.0.0" in listening(open_to_all, domain)
        assert not shares_memory(alone) and shares_memory(open_to_all)


@contextmanager
def another_computer() -> Iterator[list[str]]:
    """A network of two machines, this one and a namespace; what runs a command there. Empty where that is forbidden."""
    name, ip = f"other{os.getpid()}", shutil.which("ip", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    here, there = f"h{os.getpid()}", f"t{os.getpid()}"
    commands = (
        f"netns add {name}",
        f"link add {here} type veth peer name {there} netns {name}",
        f"addr add {OURS}/30 dev {here}",
        f"link set {here} up",
        f"-n {name} addr add {THEIRS}/30 dev {there}",
        f"-n {name} link set {there} up",
        f"-n {name} link set lo up",
    )
    made = ip is not None and all(
        subprocess.run([ip, *words.split()], capture_output=True).returncode == 0 for words in commands
    )
    try:
        yield [str(ip), "netns", "exec", name] if made else []
    finally:
        if ip is not None:
            subprocess.run([ip, "netns", "delete", name], capture_output=True)


@pytest.mark.timed
def test_another_computer_is_obeyed_only_where_the_network_was_asked_for():
    """It knows our address, asks for it by name, and calls the service that needs no robot."""
    with ExitStack() as held:
        domains = [held.enter_context(own_domain()) for _ in range(2)]
        there = held.enter_context(another_computer())
        nodes = [held.enter_context(supervisor(d, **e)) for d, e in zip(domains, ({}, {NETWORK: "1"}), strict=True)]
        if not there:  # no right to make a network: then by where they listen
            addresses = [listening(node, domain) for node, domain in zip(nodes, domains, strict=True)]
            assert addresses[0] == {"127.0.0.1"} and "0.0.0.0" in addresses[1]
            return
        command = [*there, sys.executable, "-m", "deploy.ros2.ask", "do=release"]
        stranger = {k: v for k, v in os.environ.items() if k not in PROFILES} | {RANGE: "SUBNET", PEERS: OURS}

        def ask(domain: int, patience: int) -> tuple[int, str]:
            """Exit status and output of one who looks for the service that long, in s."""
            environment = {**stranger, "ROS_DOMAIN_ID": str(domain)}
            words = [*command, f"patience={patience}"]
            run = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60.0)
            return run.returncode, run.stdout + run.stderr

        heard = [ask(domains[1], 8) for _ in range(2)]  # once in 20 runs DDS did not find the service in 20 s
        assert (0, "released; arm it again\n") in heard, heard
        status, nothing = ask(domains[0], 6)
        assert status == 2 and "nobody offers the service /release" in nothing, nothing

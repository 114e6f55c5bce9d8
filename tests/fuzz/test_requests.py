"""Mutants of what comes over the network: requests to a policy server, answers to its client, datagrams to vehicles."""

import contextlib
import math
import os
import socket
import struct
import time

import numpy as np
import pytest

from deploy.crazyflie.crtp import Packet
from deploy.crazyflie.simulator import Config
from deploy.crazyflie.simulator.simulation import Simulation
from deploy.remote.client import pack, unpack
from deploy.serve import Service
from policies.models.chunking import ChunkPolicy, NoiseTable
from policies.models.export import export
from tests.fuzz.mutants import HOSTILE, bytes_of, json_of, rounds
from tests.policies.models.test_chunking import base
from tests.policies.toy_reach import ToyReach

QUAD_ANY = "deploy/pretrained/quad_any.onnx"
LARGEST = 500  # characters of what a server says instead of an answer


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    controller = ChunkPolicy.from_task(ToyReach(), base(), NoiseTable.normal(6, 5), 3)
    return Service(export(controller, tmp_path_factory.mktemp("fuzz") / "base.onnx"))


def hostile_array(rng):
    shape = tuple(int(k) for k in rng.integers(0, 4, int(rng.integers(0, 4))))
    kind = ["f4", "f8", "u1", "i8", "?", "S3", "U2", "f2"][int(rng.integers(8))]
    with np.errstate(all="ignore"):
        made = (1e39 * rng.normal(size=shape)).astype("f8") if rng.integers(4) == 0 else rng.normal(size=shape)
        return np.asarray(made).astype(kind)


def request_of(service, rng):
    """A request, perhaps a good one, out of hand-made parts."""
    n = int(rng.integers(0, 4))
    lead = () if rng.integers(2) else (n,)
    asked = {s.name: rng.normal(size=(*lead, *s.shape)).astype("f4") for s in service.policy.inputs}
    if rng.integers(2):
        asked["noise"] = rng.normal(size=(*lead, *service.shape)).astype("f4")
    kind = rng.integers(6)
    if kind < 2:
        asked[list(asked)[int(rng.integers(len(asked)))]] = hostile_array(rng)
    if kind == 2:
        asked[list(asked)[int(rng.integers(len(asked)))]] = HOSTILE[int(rng.integers(len(HOSTILE)))]
    if kind == 3:
        asked = json_of({name: value.tolist() for name, value in asked.items()}, rng)
    try:
        content = pack(asked)
    except (ValueError, OverflowError, UnicodeError, TypeError):  # what a client cannot send
        content = pack([])
    return bytes_of(content, rng) if rng.integers(3) == 0 else content


def test_mutants_of_requests(service):
    answered = refused = 0
    slowest = 0.0
    for seed in range(rounds(1500)):
        content = request_of(service, np.random.default_rng(seed))
        began = time.monotonic()
        said = service.reply(content if seed % 7 else content.decode("latin-1"))
        slowest = max(slowest, time.monotonic() - began)
        if isinstance(said, bytes):
            answered += 1
            actions = unpack(said)["actions"]
            assert actions.shape[-2:] == service.shape and np.isfinite(actions).all(), seed
        else:
            refused += 1
            assert said.isprintable() and len(said) <= LARGEST, seed
    print(f"requests: {answered} answered, {refused} refused, slowest {slowest:.3f} s")
    assert answered and refused and slowest < 1.0


def test_mutants_of_answers(service):
    """What a client unpacks: it is a message or a ValueError, whatever the server sends."""
    whole = pack(service.metadata())
    read = refused = 0
    for seed in range(rounds(1500)):
        content = bytes_of(whole, np.random.default_rng(seed))
        try:
            unpack(content)
            read += 1
        except ValueError as error:
            refused += 1
            assert str(error).isprintable()
    print(f"answers: {read} read, {refused} refused")
    assert read and refused


def datagram(rng):
    """A packet to a port that exists, with numbers that are on the edge of what they can be, or noise."""
    edges = (0.0, -1.0, 1e38, math.inf, -math.inf, math.nan, 1e-40, 0.5)
    kind = rng.integers(4)
    if kind == 0:
        return rng.bytes(int(rng.integers(0, 65)))
    if kind == 1:
        data = struct.pack("<7f", *(edges[int(k)] for k in rng.integers(len(edges), size=7)))
        head = rng.bytes(int(rng.integers(1, 3)))
        return Packet(int(rng.integers(16)), int(rng.integers(4)), (head + data)[:30]).encode()
    if kind == 2:
        return b"\xff" + bytes((int(rng.choice([0xFE, 0, 0xFF])), int(rng.choice([1, 2, 3, 0xF0, 0])))) + rng.bytes(2)
    body = bytes(int(rng.choice([0, 1, 2, 3, 7, 255])) for _ in range(int(rng.integers(0, 31))))
    return Packet(int(rng.integers(16)), int(rng.integers(4)), body).encode()


@contextlib.contextmanager
def simulated(**settings):
    simulation = Simulation(Config(uri="udp://127.0.0.1:0", **settings))
    try:
        yield simulation
    finally:
        simulation.close()


def test_mutants_of_datagrams(monkeypatch):
    monkeypatch.chdir(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
    with simulated(policy=QUAD_ANY, auto_arm=True) as simulation, socket.socket(type=socket.SOCK_DGRAM) as client:
        vehicle = simulation.vehicles[0]
        client.setblocking(False)
        to = vehicle.socket.getsockname()
        assert to[0] == "127.0.0.1"
        heard = 0
        for seed in range(rounds(2000)):
            rng = np.random.default_rng(seed)
            client.sendto(datagram(rng), to)
            vehicle.receive()
            if seed % 4 == 0:
                simulation.tick()
            with contextlib.suppress(BlockingIOError):
                while True:
                    assert len(client.recv(100)) <= 31
                    heard += 1
            if seed % 500 == 499:  # whatever was switched off: the radio chip still obeys
                client.sendto(b"\xff\xfe\x03", to)
                vehicle.receive()
                assert vehicle.powered and len(vehicle.firmware._text) <= 1 << 14
        print(f"datagrams: {seed + 1} sent, {heard} answers")
        assert heard


@pytest.mark.timed
def test_a_flood_of_datagrams_does_not_stop_the_clock():
    with simulated() as simulation, socket.socket(type=socket.SOCK_DGRAM) as client:
        vehicle = simulation.vehicles[0]
        for _ in range(2000):
            client.sendto(b"\xf0x", vehicle.socket.getsockname())
        began = time.monotonic()
        vehicle.receive()
        assert time.monotonic() - began < 0.5
        for _ in range(5000):
            vehicle.firmware.say("nobody listens " * 10)
        assert len(vehicle.firmware._text) <= 1 << 14

"""Policy servers speak openpi's protocol, answer every request, and whatever goes wrong is said in a sentence."""

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import msgpack
import numpy as np
import pytest
from websockets.sync.client import connect
from websockets.sync.server import serve as listen

from deploy.policy_file import PolicyFileError
from deploy.remote.client import Client, ServerError, pack, unpack
from deploy.serve import main, opened
from policies.models.chunking import ChunkPolicy, NoiseTable
from policies.models.export import export
from tests.deploy.sample_policy import small
from tests.policies.models.test_chunking import base
from tests.policies.toy_reach import ToyReach

ONES = {"position": np.ones((1, 2), np.float32), "goal": np.ones((1, 2), np.float32)}
NOISE = np.zeros((1, 3, 2), np.float32)


@contextmanager
def listening(server):
    """The address of a server that answers meanwhile."""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.socket.getsockname()[1]}"
    finally:
        server.shutdown()
        thread.join()


def says(greeting, *answers):
    """A server that says this, whatever it is asked, and then hangs up."""

    def talk(connection):
        connection.send(greeting)
        for answer, _ in zip(answers, connection, strict=False):
            connection.send(answer)

    return listen(talk, "127.0.0.1", 0)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    controller = ChunkPolicy.from_task(ToyReach(), base(), NoiseTable.normal(6, 5), 3)
    return export(controller, tmp_path_factory.mktemp("wire") / "base.onnx")


@pytest.fixture(scope="module")
def address(file):
    with listening(opened(file, "127.0.0.1", 0)) as at:
        yield at


def test_messages_come_back():
    arrays = [np.arange(6, dtype=kind).reshape(2, 3) for kind in (np.uint8, np.float32, np.int64, np.float64)]
    message = {"image": arrays[0], "nested": {"all": arrays, "prompt": "lift"}, "scalar": np.float32(0.5), "none": None}
    found = unpack(pack(message))
    assert found["nested"]["prompt"] == "lift" and found["scalar"] == np.float32(0.5) and found["none"] is None
    for sent, got in zip([arrays[0], *arrays], [found["image"], *found["nested"]["all"]], strict=True):
        assert got.dtype == sent.dtype and np.array_equal(got, sent)


def test_arrays_are_written_as_openpi_s_clients_write_them():
    plain = msgpack.unpackb(pack(np.array([[1, 2]], "<i2")))
    assert plain == {b"__ndarray__": True, b"data": b"\1\0\2\0", b"dtype": "<i2", b"shape": [1, 2]}
    assert msgpack.unpackb(pack(np.float32(2.0))) == {b"__npgeneric__": True, b"data": 2.0, b"dtype": "<f4"}


def test_what_cannot_be_sent_or_read_is_refused():
    with pytest.raises(ValueError, match="ndarray .* cannot be sent"):
        pack({"x": np.array([object()])})
    evil = msgpack.packb({b"__ndarray__": True, b"data": b"\0" * 8, b"dtype": "|O", b"shape": [1]})
    wrong = msgpack.packb({b"__ndarray__": True, b"data": b"\0" * 8, b"dtype": "<f4", b"shape": [3]})
    for content in (evil, wrong, b"\xc1", pack({"a": 1})[:-1]):
        with pytest.raises(ValueError, match="bytes are no message"):
            unpack(content)


def test_a_server_answers_for_the_base(address, file):
    client, rng = Client(address), np.random.default_rng(0)
    assert client.metadata["task"] == "toy_reach" and client.metadata["noise"] == [3, 2]
    assert client.metadata["sha256"] == file.sha256 and len(client.metadata["mean"]) == 4
    signals = {name: rng.uniform(-1.0, 1.0, (5, 2)).astype(np.float32) for name in ("position", "goal")}
    noise = rng.normal(size=(5, 3, 2)).astype(np.float32)
    chunk = base().sample(np.concatenate([signals["position"], signals["goal"]], 1), noise.reshape(5, -1))
    actions = client.actions(signals, noise, 3, 2)
    assert np.abs(actions.reshape(5, -1) - chunk).max() < 1e-5  # commands are -1 to 1
    first = {name: value[0] for name, value in signals.items()}
    assert np.allclose(client.ask({**first, "noise": noise[0]})["actions"], actions[0], atol=1e-6)
    drawn = [client.ask(first)["actions"] for _ in range(2)]  # as any client of openpi asks
    assert drawn[0].shape == (3, 2) and not np.array_equal(*drawn)
    client.metadata = {}  # one by one
    assert np.allclose(client.actions(signals, noise, 2, 2), actions[:, :2], atol=1e-6)
    client.close()


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"goal": ONES["goal"]}, "ValueError: the request lacks position; it has goal"),
        (ONES | {"goal": np.ones((1, 3), np.float32)}, "goal has shape (1, 3), not (2,), or is not finite"),
        (ONES | {"goal": np.full((1, 2), np.nan)}, "goal has shape (1, 2), not (2,), or is not finite"),
        (ONES | {"noise": NOISE[:, :2]}, "noise has shape (1, 2, 2), not (3, 2)"),
        (ONES | {"noise": NOISE + np.inf}, "noise is not finite"),
        ([1, 2], "a request is a map, not a list"),
        (ONES | {"goal": "there"}, "goal has shape"),
    ],
)
def test_requests_that_make_no_sense_are_refused_and_the_next_is_answered(request_, reason, address):
    client = Client(address)
    client._socket.send(pack(request_))
    assert reason in client._socket.recv(timeout=10.0)
    assert client.actions(ONES, NOISE, 3, 2).shape == (1, 3, 2)
    client.close()


@pytest.mark.parametrize(
    ("greeting", "answer", "reason"),
    [
        ("not today", b"", "refuses: not today"),
        (b"\xc1", b"", "does not speak openpi's protocol: 1 bytes are no message"),
        (pack([1]), b"", "sends a list in the place of a map"),
        (pack({}), "Traceback ...\nKeyError: 'observation/image'", "refuses: KeyError: 'observation/image'"),
        (pack({}), pack({"state": 1}), 'answers without "actions", with state'),
        (pack({}), pack({"actions": np.zeros((3, 7), np.float32)}), "actions of shape (3, 7), wanted are (3, 2)"),
        (pack({}), pack({"actions": np.zeros((2, 2), np.float32)}), "actions of shape (2, 2), wanted are (3, 2)"),
        (pack({}), pack({"actions": np.full((3, 2), np.nan)}), "answers with actions that are not finite"),
        (pack({}), None, "has closed the connection"),
    ],
)
def test_servers_that_answer_wrongly_are_named(greeting, answer, reason):
    with listening(says(greeting, *([] if answer is None else [answer]))) as address:
        with pytest.raises(ServerError) as caught:
            Client(address).actions(ONES, NOISE, 3, 2)
        assert str(caught.value).startswith(f"the policy server at {address} ") and reason in str(caught.value)


def test_a_server_that_is_too_slow_is_not_waited_for():
    def talk(connection):
        connection.send(pack({}))
        connection.recv()
        time.sleep(0.5)

    with listening(listen(talk, "127.0.0.1", 0)) as address:
        client = Client(address, timeout=0.2)
        with pytest.raises(ServerError, match=re.escape("has not answered for 0.2 s")):
            client.actions(ONES, NOISE, 3, 2)


def test_a_client_that_vanishes_is_no_trouble(address, caplog):
    before = {*threading.enumerate()}
    with connect(f"ws://{address}") as client:
        client.recv()
        client.socket.shutdown(socket.SHUT_RDWR)
    end = time.monotonic() + 10.0
    while {*threading.enumerate()} - before:  # the server's, for this client
        assert time.monotonic() < end
        time.sleep(0.01)
    assert Client(address).actions(ONES, NOISE, 3, 2).shape == (1, 3, 2)
    assert not caplog.records


def test_servers_that_are_not_there():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"no policy server at 127.0.0.1:{port}: .*timed out"):
            Client(f"127.0.0.1:{port}", timeout=0.2)
    with pytest.raises(ServerError, match=f"no policy server at 127.0.0.1:{port}: .*refused; python -m deploy.serve"):
        Client(f"127.0.0.1:{port}")
    with pytest.raises(ServerError, match="server=localhost: needs HOST:PORT, such as localhost:8000"):
        Client("localhost")


def test_the_command(file, tmp_path):
    command = [sys.executable, "-m", "deploy.serve", f"policy={file.path}", "port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().split()[-1]
        client = Client(address)
        assert client.actions(ONES, NOISE, 3, 2).shape == (1, 3, 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 130 and process.stderr.read() == "interrupted\n"
    with pytest.raises(ServerError, match=f"the policy server at {address} has closed the connection"):
        client.actions(ONES, NOISE, 3, 2)
    with pytest.raises(PolicyFileError, match="has no base that is steered by noise"):
        main([f"policy={export(small(), tmp_path / 'plain.onnx').path}"])
    with pytest.raises(ValueError, match="port lies between 0 and 65535, got 70000"):
        main([f"policy={file.path}", "port=70000"])

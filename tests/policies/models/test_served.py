"""Bases on servers are steered as those in files are; what is exported asks them; lost ones can be found again."""

import numpy as np
import pytest
import torch
from websockets.sync.server import serve as listen

from deploy import replay, run
from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.recording.flight_log import FlightLogError
from deploy.remote.client import ServerError, pack, unpack
from deploy.remote.split_policy import Served, connected
from deploy.serve import Service, opened
from policies import evaluate
from policies.algorithms import LearningError
from policies.algorithms.bc import Bc, BcConfig
from policies.algorithms.dsrl import Dsrl
from policies.algorithms.dsrl_na import DsrlNa
from policies.algorithms.expo import Expo
from policies.learning.base import Origin
from policies.models.chunking import ChunkPolicy, NoiseTable
from policies.models.export import export
from policies.runner.config import RunError, compose
from policies.train import train
from tests.deploy.remote.test_client import listening
from tests.policies.learning.test_base import BASE, TINY, TOY, Wider, drawn, weights
from tests.policies.models.test_chunking import base
from tests.policies.toy_reach import ToyReach
from tests.policies.toy_sight import ToySight


def learner(kind=Dsrl, task=None, **origin):
    shown = {"horizon": 2, "episodes": 10, "corruption": 0.5}
    return kind(task or ToyReach(), kind.Config(base=Origin(**(shown | origin)), **TINY), 0)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    clone = Bc(ToyReach(), BcConfig(**vars(BASE)), 0)
    list(clone.learn())
    return export(clone.controller(), tmp_path_factory.mktemp("served") / "base.onnx")


@pytest.fixture(scope="module")
def address(file):
    with listening(opened(file, "127.0.0.1", 0)) as at:
        yield at


@pytest.fixture(scope="module")
def steered(address, file):
    """Learners after a little practice: of the base on the server, and of the one in the file."""
    both = learner(server=address), learner(policy=file.path)
    for one in both:
        one.rows = list(one.learn())
    return both


@pytest.fixture(scope="module")
def front(steered, tmp_path_factory):
    """The exported actor."""
    return export(steered[0].controller(), tmp_path_factory.mktemp("front") / "front.onnx")


def test_it_is_steered_as_the_one_in_the_file_is(steered, file):
    served, given = steered
    assert served.rows == given.rows and torch.equal(weights(served), weights(given))
    assert served.provenance()["base"]["server"]["sha256"] == file.sha256
    observation, noise = drawn(30, 4, 4)
    chunks = [one.run.base.sample(observation, noise) for one in steered]
    assert np.abs(chunks[0] - chunks[1]).max() < 1e-6


def test_critics_of_chunks_ask_for_many_at_once(address):
    one = learner(DsrlNa, server=address)
    assert list(one.learn())[-1]["divergence"] > 0.0 and one.memory.prior.size > 0


def test_what_is_exported_asks_the_server(steered, address, tmp_path):
    served, given = ({"learned": one.controller(), **one.baselines()} for one in steered)
    assert served.keys() == given.keys() and len(served) == 5
    for name in served:
        front, whole = (export(made[name], tmp_path / f"{name}.onnx") for made in (served, given))
        policy = connected(front, address)
        env = ToyReach().open(5, 0)
        env.reset(range(5), range(5))
        policy.reset(5)
        whole.reset(5)
        for _ in range(7):
            commands = [one.step(env.observe())["velocity"] for one in (policy, whole)]
            assert np.abs(commands[0] - commands[1]).max() < 1e-5, name
            env.step({"velocity": commands[0]})


def test_a_restarted_robot_gets_a_new_plan(front, address):
    policy, (seen,) = connected(front, address), drawn(2, 4)
    policy.reset(2)
    signals = {"position": seen[:, :2], "goal": seen[:, 2:]}
    first = policy.step(signals)["velocity"]
    policy.restart(np.array([True, False]))
    again = policy.step(signals)["velocity"]
    assert np.allclose(first[0], again[0], atol=1e-6) and not np.allclose(first[1], again[1], atol=1e-6)
    assert policy.verify() <= 1.0 and policy.states().keys() == front.states().keys()


def test_commands_take_the_server(front, address, file, tmp_path, capsys):
    log = f"log={tmp_path}/flight.mcap"
    evaluate.main([f"policy={front.path}", f"server={address}", "episodes=4", f"task={TOY}"])
    run.main([f"policy={front.path}", f"server={address}", f"task={TOY}", "episodes=2", log])
    assert "4 episodes" in (said := capsys.readouterr().out) and "2 robot(s)" in said
    with pytest.raises(FlightLogError, match="actions came from a server, and cannot be computed again without it"):
        replay.main([log])
    for command in (evaluate, run):
        with pytest.raises(PolicyFileError, match="steers a base on a server: say which one with server=HOST:PORT"):
            command.main([f"policy={front.path}", f"task={TOY}"])
        with pytest.raises(PolicyFileError, match=f"is a whole policy: it goes without server={address}"):
            command.main([f"policy={file.path}", f"server={address}", f"task={TOY}"])
    with pytest.raises(ValueError, match="controller=c: what a server computes is asked for by onnxruntime only"):
        run.main([f"policy={front.path}", f"server={address}", "controller=c"])


def test_another_base_is_not_taken_for_it(front, steered, tmp_path):
    other = export(ChunkPolicy.from_task(ToyReach(), base(horizon=2), NoiseTable.normal(4), 2), tmp_path / "other.onnx")
    with listening(opened(other, "127.0.0.1", 0)) as address:
        with pytest.raises(ServerError, match=f"front.onnx steers another base than the one at {address}"):
            connected(front, address)
        with pytest.raises(LearningError, match=f"at {address} is another base than the one that this run improves"):
            learner(server=address).load_state_dict(steered[0].state_dict())


def foreign(connection):
    """A server as openpi's: no metadata, one request at a time, more noise and more actions than are wanted."""
    connection.send(pack({}))
    for content in connection:
        seen = unpack(content)
        assert seen["noise"].shape == (5, 3) and seen["position"].shape == (2,)
        actions = 0.3 * seen["noise"][:, :2] + 0.5 * (seen["goal"] - seen["position"])
        connection.send(pack({"actions": actions, "policy_timing": {"infer_ms": 1.0}}))


def test_a_server_that_says_nothing_of_itself(tmp_path):
    with listening(listen(foreign, "127.0.0.1", 0)) as address:
        settings = {"horizon": 2, "server": address, "noise": [5, 3], "episodes": 4, "corruption": 0.2}
        config = Dsrl.Config(base=Origin(**settings), **TINY, same_noise=True)
        one = Dsrl(ToyReach(), config, 0)
        assert one.size == 3 and one.run.base.noise_size == 15
        assert list(one.learn())[-1]["env_steps"] == 100.0
        shown = np.concatenate([np.concatenate([*e.signals.values()], 1) for e in one.run.demonstrations])
        assert np.allclose(one.cloning.normalizer.shift, shown.mean(0), atol=1e-5)
        front = export(one.controller(), tmp_path / "front.onnx")
        policy = connected(front, address)
        assert isinstance(policy, Served) and front.outputs[0].shape == (15,)
        signals = {"position": np.zeros((3, 2), np.float32), "goal": np.ones((3, 2), np.float32)}
        policy.reset(3)
        w = one.controller().chosen.actor.forward(np.array([[0, 0, 1, 1]], np.float32), {})[0]
        wanted = np.clip(0.3 * 1.5 * w[0, :2] + 0.5, -1.0, 1.0)
        assert np.allclose(policy.step(signals)["velocity"], wanted, atol=1e-5)


def test_a_base_that_does_not_fit_is_refused(address):
    with pytest.raises(PolicyFileError, match=f"at {address} has other signals than toy_reach as it is set: obstacle"):
        learner(task=Wider(), server=address)
    with pytest.raises(ValueError, match="toy_sight shows pictures, of which a server's base does not say"):
        learner(task=ToySight(), server=address)
    with pytest.raises(ValueError, match=f"at {address} plans 2 actions, not 3"):
        learner(server=address, horizon=3)
    with pytest.raises(ValueError, match="edited chunks are put into a file with their base, not with one on a server"):
        learner(Expo, server=address)
    with pytest.raises(ValueError, match="one base is improved, not both policy=a and server=b"):
        Origin(policy="a", server="b")
    with pytest.raises(ValueError, match=r"needs timeout > 0 and noise as \[rows, columns\], got 1.0 and \[4\]"):
        Origin(timeout=1.0, noise=[4])


def test_a_lost_server_ends_the_run_and_the_run_goes_on(file, tmp_path):
    """The server dies in the middle of the training; with another in its place the run ends as one without that."""
    tiny = [
        "base.horizon=2",
        "warmup_episodes=2",
        "head_start=8",
        "batch_size=16",
        "num_envs=1",
        "total_steps=200",
        "hidden=[16,16]",
    ]
    service, left = Service(file), [65]  # requests until it dies

    def talk(connection):
        connection.send(pack(service.metadata()))
        for content in connection:
            left[0] -= 1
            if left[0] < 0:
                return
            connection.send(pack(service.answer(unpack(content))))

    def settings(folder, at):
        said = [f"algorithm.{setting}" for setting in (*tiny, f"base.server={at}")]
        return compose([f"task={TOY}", "algorithm=dsrl", *said, "report=false", "checkpoint_s=1e-6", f"out={folder}"])

    with listening(listen(talk, "127.0.0.1", 0)) as address:
        lost = f"the policy server at {address} has closed the connection; the checkpoint of .* resume={tmp_path}/run"
        with pytest.raises(RunError, match=lost):
            train(settings(tmp_path / "run", address))
    with pytest.raises(RunError, match=f"no policy server at {address}"):
        train(compose([f"resume={tmp_path}/run", f"task={TOY}"]))
    host, port = address.split(":")
    with listening(opened(file, host, int(port))):
        resumed = train(compose([f"resume={tmp_path}/run", f"task={TOY}", "report=true", "evaluation_episodes=2"]))
        whole = train(settings(tmp_path / "whole", address))
    actors = [PolicyFile.load(str(path)) for path in (resumed, whole)]
    (seen,) = drawn(9, 4)
    for actor in actors:
        actor.reset(9)
    noise = [actor.step({"position": seen[:, :2], "goal": seen[:, 2:]})["noise"] for actor in actors]
    assert actors[0].metadata["evaluation"]["episodes"] == 2
    assert np.array_equal(*noise) and actors[0].metadata["training"]["base"]["server"]["sha256"] == file.sha256

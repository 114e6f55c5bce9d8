"""Checkpoints of rl_tools, whose published one is "RAPTOR": what is read of them, and what is refused."""

from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml

from deploy import cli
from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.runtimes import CompiledPolicy
from policies import adopt
from policies.adoption.formats.rl_tools import from_rl_tools
from sim.env import make_env
from sim.tasks import make
from tests.policies.adoption import foreign

SEEN = "Position.OrientationRotationMatrix.LinearVelocity.AngularVelocityDelayed(0).ActionHistory(1)"
TERMS = [
    {"signal": "position", "minus": "target_position"},
    {"signal": "rotation"},
    {"signal": "linear_velocity", "minus": "target_velocity"},
    {"signal": "angular_velocity"},
    {"last_action": True},
]


def adopted(file, tmp_path, task):
    """The policy file, by the two commands."""
    words = [str(file), "from=rl_tools"]
    assert cli.call(adopt.main, [*words, f"draft={tmp_path / 'a.yaml'}", *task]) == 0
    assert cli.call(adopt.main, [*words, f"description={tmp_path / 'a.yaml'}", f"out={tmp_path / 'a.onnx'}"]) == 0
    return PolicyFile.load(tmp_path / "a.onnx")


def test_the_file_says_what_it_sees_and_its_memory_is_in_the_policy_file(tmp_path):
    file = foreign.write_rl_tools(tmp_path / "a.h5", SEEN)
    policy = adopted(file, tmp_path, ["task=quad_any", "task.path=hold"])
    description = yaml.safe_load((tmp_path / "a.yaml").read_text())
    assert description["observation"] == TERMS
    assert description["action"]["clip"] == [-1.0, 1.0]
    assert {s.name: s.initial.shape for s in policy.state} == {"last_action": (4,), "hidden_1": (5,)}
    with h5py.File(file) as held:
        first = held["actor/layers/1/initial_hidden_state/parameters"][()]
        x = held["example/input"][0, :1]
    network, state = from_rl_tools(file, {}).network, {"hidden_1": first[None]}
    signals = {"position": x[0, :3], "rotation": x[0, 3:12], "linear_velocity": x[0, 12:15]}
    signals |= {"angular_velocity": x[0, 15:18], "target_position": np.zeros(3), "target_velocity": np.zeros(3)}
    x[0, 18:] = description["action"]["initial"]
    policy.reset()
    compiled = CompiledPolicy(policy)
    for _ in range(5):
        y, state = network.forward(x, state)
        x[0, 18:] = np.clip(y, -1.0, 1.0)
        want = pytest.approx(0.5 * (np.clip(y[0], -1.0, 1.0) + 1.0), abs=1e-5)
        assert policy.step(signals)["motor_command"] == want
        in_c = compiled.step({name: np.asarray(value, np.float32)[None] for name, value in signals.items()})
        assert in_c["motor_command"][0] == want


def test_a_task_without_a_signal_that_is_subtracted_goes_too(tmp_path):
    file = foreign.write_rl_tools(tmp_path / "a.h5", SEEN.replace("ActionHistory(1)", "Lidar.ActionHistory(2)"))
    words = [file, "from=rl_tools", f"draft={tmp_path / 'a.yaml'}"]
    assert cli.call(adopt.main, [*words, "task=quad_hover"]) == 0
    made = yaml.safe_load((tmp_path / "a.yaml").read_text())["observation"]
    assert made[2] == {"signal": "linear_velocity"}
    assert made[4:] == [{"signal": "?Lidar"}, {"last_action": True, "history": 2}]
    assert cli.call(adopt.main, words) == 0
    declared = yaml.safe_load((tmp_path / "a.yaml").read_text())
    assert declared["observation"][2]["minus"] == "target_velocity"
    assert [s["name"] for s in declared["signals"]][-1] == "?Lidar"
    assert declared["commands"][0]["limits"] == [0.0, 1.0]


def test_a_mean_and_a_deviation_and_a_perceptron_are_read(tmp_path):
    assert from_rl_tools(foreign.write_rl_tools(tmp_path / "a.h5", squash=True), {}).network.outputs == 4
    net, x = foreign.layers([3, 6, 5, 2]), np.random.default_rng(0).normal(size=(4, 1, 3)).astype(np.float32)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_group("actor").attrs.update({"type": "mlp", "num_layers": 3})
        for name, (weight, bias) in zip(("input_layer", "hidden_layer_0", "output_layer"), net, strict=True):
            group = file.create_group(f"actor/{name}")
            group.attrs.update(
                {"type": "dense", "activation_function": "IDENTITY" if name == "output_layer" else "RELU"}
            )
            group["weights/parameters"], group["biases/parameters"] = weight, bias
        file["example/input"] = x
        file["example/output"] = foreign.apply(net, x, lambda v: np.maximum(v, 0.0))
    assert from_rl_tools(str(tmp_path / "b.h5"), {}).network.inputs == 3


def spoiled(path, change):
    with h5py.File(foreign.write_rl_tools(path), "r+") as file:
        change(file)
    return str(path)


def linked(file):
    with h5py.File(Path(file.filename).with_name("outside.h5"), "w") as outside:
        outside["weights"] = np.zeros((5, 22))
    del file["actor/layers/0/weights/parameters"]
    file["actor/layers/0/weights/parameters"] = h5py.ExternalLink("outside.h5", "/weights")


def shorter(file):
    del file["actor/layers/2/weights/parameters"]
    file["actor/layers/2/weights/parameters"] = np.zeros((4, 6), np.float32)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (linked, "'parameters' is a link, which is not followed"),
        (shorter, "a layer takes 6 numbers but receives 5"),
        (lambda f: f.__delitem__("actor"), "there is no 'actor'"),
        (lambda f: f.__delitem__("example"), "there is no 'example'"),
        (lambda f: f["actor/layers/1"].attrs.update({"type": "lstm"}), "a layer of type 'lstm'"),
        (
            lambda f: f["actor/layers/0"].attrs.update({"activation_function": "GELU"}),
            "activation 'GELU' is not one of",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, change, said):
    with pytest.raises(PolicyFileError, match=said):
        from_rl_tools(spoiled(tmp_path / "a.h5", change), {})


def test_weights_that_do_not_make_their_own_example_are_refused_and_nothing_is_written(tmp_path, capsys):
    file = foreign.write_rl_tools(tmp_path / "a.h5", SEEN, spoil=1e-3)
    words = [file, "from=rl_tools", f"draft={tmp_path / 'a.yaml'}"]
    assert cli.call(adopt.main, words) == 2
    assert "its own example does not come out: an output is off by 0.001" in capsys.readouterr().err
    (tmp_path / "no.h5").write_bytes(b"\x80\x04pickle")
    assert cli.call(adopt.main, [str(tmp_path / "no.h5"), *words[1:]]) == 2
    assert "is no checkpoint of rl_tools: is no HDF5" in capsys.readouterr().err
    assert not (tmp_path / "a.yaml").exists()


@pytest.mark.skipif(find_spec("foundation_policy") is None, reason="foundation-policy is not installed")
def test_raptor_commands_what_its_own_library_does_in_200_steps_of_flight(tmp_path):
    library = pytest.importorskip("foundation_policy")
    policy = adopted(Path(library.__file__).with_name("blob") / "checkpoint.h5", tmp_path, ["task=quad_any"])
    task, own = make("quad_any", path="figure_eight", robot="any_published"), library.Raptor()
    env = make_env(task, 4, 20261126)
    env.reset(range(4), range(4))
    policy.reset(4)
    own.reset()
    action = np.full((4, 4), task.initial_action, np.float32)
    for _ in range(200):
        signals = env.observe()
        away = signals["position"] - signals["target_position"], signals["rotation"]
        moving = signals["linear_velocity"] - signals["target_velocity"], signals["angular_velocity"]
        action = np.clip(own.evaluate_step(np.concatenate([*away, *moving, action], axis=1)), -1.0, 1.0)
        command = policy.step({s.name: signals[s.name] for s in policy.inputs})
        assert command["motor_command"] == pytest.approx(0.5 * (action + 1.0), abs=1e-5)
        env.step(command)

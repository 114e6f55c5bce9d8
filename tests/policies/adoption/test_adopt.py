"""A foreign policy becomes a policy file: what it commands is what its own library would, fed as it says."""

import json
import os
import pickle

import numpy as np
import onnx
import pytest
import torch
import yaml
from onnx import TensorProto, helper

import sim.gym
from deploy import cli
from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.runtimes import CompiledPolicy
from policies import adopt
from policies.adoption import draft
from policies.adoption.formats import sb3
from policies.adoption.networks import ForeignGraph
from sim.spec import limits
from sim.tasks import make
from tests.policies.adoption import foreign

STEPS = 40
ROBOT = {
    "robot": "toy",
    "rate_hz": 50,
    "signals": [
        {"name": "joint_position", "size": 3, "unit": "rad", "elements": ["hip", "knee", "foot"]},
        {"name": "gyro", "size": 3, "unit": "rad/s", "frame": "body"},
    ],
    "commands": [{"name": "joint_target", "size": 3, "limits": [-2.0, 3.0], "elements": ["hip", "knee", "foot"]}],
}
JOINTS = {"signal": "joint_position", "elements": ["foot", "hip", "knee"], "offset": [0.3, 0.1, 0.2], "scale": 2.0}
ACTION = {"command": "joint_target", "elements": ["knee", "foot", "hip"], "scale": [0.5, 0.25, 1.0], "offset": 0.2}


def described(path, **more):
    """A description of three joints and a gyroscope, with these fields changed."""
    found = {**ROBOT, "observation": [JOINTS, {"signal": "gyro"}], "action": ACTION, **more}
    path.write_text(yaml.safe_dump({key: value for key, value in found.items() if value is not None}))
    return str(path)


def run(tmp_path, file, source, description, *words):
    """The status of the command, and where its file would be."""
    out = tmp_path / "out.onnx"
    words = [file, f"from={source}", f"description={description}", f"out={out}", *words]
    return cli.call(adopt.main, words), out


@pytest.mark.parametrize("order", ["term", "frame"])
@pytest.mark.parametrize("newest", ["first", "last"])
@pytest.mark.parametrize("start", ["first", "zero"])
def test_history_order_limits_and_joints_are_in_the_file(tmp_path, order, newest, start):
    net = foreign.layers([27, 16, 3])
    file = foreign.write_onnx(tmp_path / "net.onnx", net, batch=1)
    mean, std = np.linspace(-0.2, 0.3, 27).tolist(), np.linspace(0.5, 2.0, 27).tolist()
    terms = [{**JOINTS, "history": 3, "clip": [-0.5, 0.6]}, {"signal": "gyro", "history": 3}]
    terms += [{"last_action": True, "history": 3}]
    more = {
        "observation": terms,
        "history": {"order": order, "newest": newest, "start": start},
        "normalisation": {"mean": mean, "std": std, "clip": 1.5},
        "action": {**ACTION, "clip": [-1.0, 1.2], "initial": 0.1},
    }
    status, out = run(tmp_path, file, "onnx", described(tmp_path / "a.yaml", **more))
    assert status == 0
    policy, rng = PolicyFile.load(out), np.random.default_rng(1)
    policy.reset(2)
    past, last = [[], []], np.full((2, 3), 0.1)
    for _ in range(STEPS):
        joints, gyro = rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
        command = policy.step({"joint_position": joints, "gyro": gyro})["joint_target"]
        for row in range(2):  # written down once more, naively
            q = {"hip": joints[row, 0], "knee": joints[row, 1], "foot": joints[row, 2]}
            seen = 2.0 * np.clip(np.array([q["foot"] - 0.3, q["hip"] - 0.1, q["knee"] - 0.2]), -0.5, 0.6)
            frame = [seen, gyro[row], last[row].copy()]
            if not past[row]:
                past[row] = [frame if start == "first" else [np.zeros(3)] * 3] * 2
            frames = [*past[row], frame]  # oldest first
            past[row] = frames[1:]
            frames = frames[::-1] if newest == "first" else frames
            x = frames if order == "frame" else [[f[term] for f in frames] for term in range(3)]
            x = np.clip((np.concatenate([v for each in x for v in each]) - mean) / std, -1.5, 1.5)
            last[row] = np.clip(foreign.apply(net, x, np.tanh), -1.0, 1.2)
            knee, foot, hip = 0.2 + last[row] * [0.5, 0.25, 1.0]
            assert command[row] == pytest.approx(np.clip([hip, knee, foot], -2.0, 3.0), abs=1e-5)


def test_an_sb3_policy_of_our_environment_commands_what_sb3_does(tmp_path):
    net = foreign.layers([30, 16, 4])
    file = foreign.write_sb3(tmp_path / "ppo.zip", net, {"action_space": {"low": "[-1. -1.]", "high": "[1. 1.]"}})
    words = [file, "from=sb3", f"draft={tmp_path / 'a.yaml'}", "task=quad_hover", "task.noise=0.0"]
    assert cli.call(adopt.main, words) == 0
    mean, var = np.linspace(-0.2, 0.3, 30), np.linspace(0.5, 2.0, 30)
    np.savez(tmp_path / "stats.npz", mean=mean, var=var, epsilon=1e-8, clip=10.0)
    drafted = (tmp_path / "a.yaml").read_text()
    (tmp_path / "a.yaml").write_text(drafted.replace("file: '?'", "file: stats.npz"))
    status, out = run(tmp_path, file, "sb3", tmp_path / "a.yaml")
    assert status == 0
    policy = PolicyFile.load(out)
    assert (policy.task, policy.robot, policy.rate_hz) == ("quad_hover", "crazyflie", 100.0)
    assert policy.metadata["training"]["task_config"]["noise"] == 0.0
    env = sim.gym.TaskEnv("quad_hover", config={"noise": 0.0})
    seen, _ = env.reset(seed=3)
    low, high = limits(policy.outputs)
    for _ in range(15):
        x = np.clip((seen - mean) / np.sqrt(var + 1e-8), -10.0, 10.0)
        action = np.clip(foreign.apply(net, x, np.tanh), -1.0, 1.0)
        signals = {s.name: env.worlds.env.observe()[s.name][0] for s in policy.inputs}
        got = policy.step(signals)["motor_command"]
        assert got == pytest.approx(low + 0.5 * (action + 1.0) * (high - low), abs=1e-5)
        seen, *_ = env.step(action.astype(np.float32))


def test_sb3s_own_policies_are_read_as_they_are(tmp_path):
    """PPO with another activation, SAC and TD3, written by the library itself."""
    gymnasium = pytest.importorskip("gymnasium")
    library = pytest.importorskip("stable_baselines3")
    env = gymnasium.make("Pendulum-v1")
    relu = {"activation_fn": torch.nn.ReLU, "net_arch": [8, 8]}
    small = {"net_arch": [8, 8]}
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for name, keywords in (("PPO", relu), ("A2C", small), ("SAC", small), ("TD3", small)):
        learner = getattr(library, name)("MlpPolicy", env, policy_kwargs=dict(keywords), device="cpu", seed=0)
        learner.save(tmp_path / f"{name}.zip")
        found = sb3.from_sb3(str(tmp_path / f"{name}.zip"), {})
        y = found.network.forward(x, {})[0]
        if "squash" in found.action:
            y = np.tanh(y) * found.action["scale"] + found.action["offset"]
        else:
            y = np.clip(y, *found.action["clip"])
        assert y == pytest.approx(learner.predict(x, deterministic=True)[0], abs=1e-5), name


@pytest.mark.parametrize("old", [False, True])
def test_a_checkpoint_of_rsl_rl_brings_its_statistics(tmp_path, old):
    net, mean, std = foreign.layers([6, 8, 3]), [0.1] * 6, [0.5] * 6
    file = foreign.write_rsl_rl(tmp_path / "model.pt", net, mean, std, old)
    status, out = run(tmp_path, file, "rsl_rl", described(tmp_path / "a.yaml", network={"activation": "elu"}))
    assert status == 0
    q, gyro = np.array([0.5, -0.2, 0.1]), np.array([0.3, 0.2, -0.1])
    x = np.concatenate([2.0 * (q[[2, 0, 1]] - [0.3, 0.1, 0.2]), gyro])
    y = foreign.apply(net, (x - 0.1) / 0.51, lambda v: np.where(v > 0.0, v, np.expm1(v)))
    knee, foot, hip = 0.2 + y * [0.5, 0.25, 1.0]
    got = PolicyFile.load(out).step({"joint_position": q, "gyro": gyro})["joint_target"]
    assert got == pytest.approx(np.clip([hip, knee, foot], -2.0, 3.0), abs=1e-5)


MJLAB = {
    "joint_names": "hip,knee,foot",
    "joint_stiffness": "20.000,20.000,20.000",
    "default_joint_pos": "0.100,0.200,0.300",
    "command_names": "twist",
    "observation_names": "base_ang_vel,joint_pos,actions,height_scan",
    "observation_terms_scale": "0.250,1.000,1.0,2.000;3.000",
    "observation_terms_flatten_history_dim": "True,True,True,True",
    "observation_terms_history_length": "0,3,0,0",
    "observation_terms_clip": "-inf;inf,-1.000;1.000,-inf;inf,-inf;inf",
    "action_scale": "0.500,0.250,0.250",
}


def test_mjlabs_metadata_fill_the_draft(tmp_path):
    file = foreign.write_onnx(tmp_path / "net.onnx", foreign.layers([17, 8, 3]), metadata=MJLAB)
    assert cli.call(adopt.main, [file, "from=mjlab", f"draft={tmp_path / 'a.yaml'}"]) == 0
    made = yaml.safe_load((tmp_path / "a.yaml").read_text())
    joints, pose = ["hip", "knee", "foot"], [0.1, 0.2, 0.3]
    assert made["observation"] == [
        {"signal": "angular_velocity", "scale": [0.25]},
        {"signal": "joint_position", "elements": joints, "offset": pose, "clip": [-1.0, 1.0], "history": 3},
        {"last_action": True},
        {"signal": "?height_scan", "scale": [2.0, 3.0]},
    ]
    assert made["history"] == {"order": "term", "newest": "last", "start": "first"}
    assert made["action"]["elements"] == joints
    assert (made["action"]["scale"], made["action"]["offset"]) == ([0.5, 0.25, 0.25], pose)
    text = (tmp_path / "a.yaml").read_text().replace("?height_scan", "height_scan").replace("size: 1,", "size: 2,")
    made = yaml.safe_load(text) | {"robot": "toy", "rate_hz": 50}
    made["commands"][0]["limits"] = [-3.0, 3.0]
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(made))
    status, out = run(tmp_path, file, "mjlab", tmp_path / "b.yaml")
    assert status == 0
    assert {s.name for s in PolicyFile.load(out).inputs} == {"angular_velocity", "joint_position", "height_scan"}


def test_joint_positions_of_a_legged_robot_are_told_from_where_it_begins(tmp_path):
    task = make("velocity", vary=0.0, steps=20)
    joints = task.elements()["position_offset"]
    assert set(joints) == {joint.name for joint in task.robot.joints}
    pose = {name: angle + 0.1 for name, angle in zip(joints, task.zero("position_offset").tolist(), strict=True)}
    mixed = sorted(joints)
    size = 3 + len(joints)
    net = [(np.zeros((len(joints), size), np.float32), np.zeros(len(joints), np.float32))]
    description = {
        "task": "velocity",
        "task_settings": {"vary": 0.0, "steps": 20},
        "observation": [{"signal": "angular_velocity"}, {"signal": "joint_position", "elements": mixed}],
        "action": {"command": "position_offset", "elements": mixed, "scale": 0.25, "means": "position"},
    }
    description["action"]["offset"] = [pose[name] for name in mixed]
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(description))
    status, out = run(tmp_path, foreign.write_onnx(tmp_path / "net.onnx", net), "onnx", tmp_path / "a.yaml")
    assert status == 0
    policy = PolicyFile.load(out)
    signals = {name: value[0] for name, value in policy.vectors.inputs.items()}
    assert policy.step(signals)["position_offset"] == pytest.approx(np.full(len(joints), 0.1), abs=1e-5)


def test_what_an_estimator_tells_is_an_input_only_where_it_is_named(tmp_path, capsys):
    task = make("velocity", vary=0.0, steps=20)
    size = task.commands[0].size
    file = foreign.write_onnx(tmp_path / "net.onnx", foreign.layers([5, size]))
    description = {
        "task": "velocity",
        "task_settings": {"vary": 0.0, "steps": 20},
        "observation": [{"signal": "target_velocity"}, {"signal": "linear_velocity"}],
        "action": {"command": "position_offset", "scale": 0.1},
    }
    for told, said in (
        ({}, "unless `estimated` names it"),
        ({"estimated": ["wind"]}, "estimated: 'wind': what velocity"),
    ):
        (tmp_path / "a.yaml").write_text(yaml.safe_dump(description | told))
        status, out = run(tmp_path, file, "onnx", tmp_path / "a.yaml")
        assert (status, out.exists()) == (2, False)
        assert said in capsys.readouterr().err
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(description | {"estimated": ["linear_velocity"]}))
    status, out = run(tmp_path, file, "onnx", tmp_path / "a.yaml")
    assert status == 0
    assert [s.name for s in PolicyFile.load(out).inputs] == ["target_velocity", "linear_velocity"]


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_nothing_that_is_pickled_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    description = described(tmp_path / "a.yaml")
    zipped = foreign.write_sb3(tmp_path / "a.zip", foreign.layers([6, 3]), held={"action_net.weight": Bomb()})
    torch.save({"actor_state_dict": Bomb()}, tmp_path / "a.pt")
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(Bomb()))
    for file, source in ((zipped, "sb3"), ("a.pt", "rsl_rl"), ("raw.pt", "rsl_rl")):
        status, out = run(tmp_path, file, source, description)
        assert status == 2
        assert "more than tensors" in capsys.readouterr().err
        assert not out.exists()
    assert not (tmp_path / "exploded").exists()


def test_a_description_opens_no_other_files_and_names_no_module(tmp_path, capsys):
    file = foreign.write_onnx(tmp_path / "net.onnx", foreign.layers([6, 3]))
    np.savez(tmp_path / "stats.npz", mean=np.zeros(6), std=np.ones(6))
    (tmp_path / "in").mkdir()
    for more, said in (
        ({"normalisation": {"file": "../stats.npz"}}, "normalisation.file: must be in the folder"),
        ({"task": "os:system", **dict.fromkeys(ROBOT)}, "'os:system', which is not one of ours"),
    ):
        status, out = run(tmp_path, file, "onnx", described(tmp_path / "in" / "a.yaml", **more))
        assert (status, out.exists()) == (2, False)
        assert said in capsys.readouterr().err


WRONG = [
    (
        {"observation": [JOINTS]},
        r"observation: the terms make 3 numbers \(joint_position 3\), the network takes 6: 3 are",
    ),
    ({"observation": [JOINTS, {"signal": "gyro", "history": 2}]}, "joint_position 3, gyro 3 x 2.*3 too many"),
    ({"observation": [{"signal": "speed"}]}, r"observation\[0\].signal: 'speed': there are: joint_position, gyro"),
    ({"observation": [{**JOINTS, "elements": ["hip", "knee", "toe"]}]}, r"\[0\].elements: .* no element 'toe'; it has"),
    ({"observation": [{**JOINTS, "elements": ["hip", "knee", "hip"]}]}, r"\[0\].elements: holds 'hip' twice"),
    ({"observation": [{**JOINTS, "elements": ["hip", 0, "knee"]}]}, r"\[0\].elements: element 0 .* twice"),
    ({"observation": [{**JOINTS, "offset": [0.1, 0.2]}]}, r"observation\[0\].offset: has 2 numbers; needs one, or 3"),
    ({"observation": [{**JOINTS, "scale": float("nan")}]}, r"\[0\].scale: number 0 is nan; all must be finite"),
    ({"observation": [{**JOINTS, "scal": 1.0}]}, r"\[0\].scal: there is no such field \(did you mean 'scale'\?\)"),
    ({"observation": [{"signal": "gyro", "constant": [1.0]}]}, r"\[0\].signal: a term has one of"),
    (
        {"normalisation": {"mean": [0.0] * 5, "std": [1.0] * 5}},
        "normalisation.mean: has 5 numbers, the network takes 6",
    ),
    ({"normalisation": {"mean": [0.0] * 6}}, "normalisation.std: has 0 numbers, mean 6; both or neither"),
    ({"normalisation": {"mean": [float("nan")] * 6, "std": [1.0] * 6}}, "normalisation.mean: number 0 is nan"),
    ({"normalisation": {"mean": [0.0] * 6, "std": [0.0] * 6}}, "normalisation.std: number 0 is 0.0; needs a positive"),
    ({"action": {**ACTION, "elements": ["hip", "knee"]}}, "action.elements: names 2 of the 3 of joint_target"),
    ({"action": {**ACTION, "command": "torque"}}, "action.command: 'torque': the commands are: joint_target"),
    ({"action": {**ACTION, "means": "range"}}, "action.means: range takes no scale"),
    ({"action": {**ACTION, "means": "position"}}, "action.means: position is for joints of a task of ours"),
    ({"action": {**ACTION, "clip": [1.0, -1.0]}}, r"action.clip: needs \[low, high\]"),
    ({"action": None}, "action: is missing"),
    ({"rate_hz": "?"}, "rate_hz: needs a finite number above 0, got '\\?'"),
    ({"history": {"order": "time"}}, "history.order: 'time' is not one of term, frame"),
    ({"network": {"activation": "relu"}}, "network.activation says nothing of this kind of file"),
    ({"task": "quad_hover"}, "commands: there is no such field"),
    ({"task": "quad_hover", "task_settings": {"episode_s": 1e6}, **dict.fromkeys(ROBOT)}, "task_settings: an episode"),
]


@pytest.mark.parametrize(("more", "said"), WRONG, ids=range(len(WRONG)))
def test_what_does_not_fit_is_named_and_nothing_is_written(tmp_path, capsys, more, said):
    file = foreign.write_onnx(tmp_path / "net.onnx", foreign.layers([6, 3]))
    status, out = run(tmp_path, file, "onnx", described(tmp_path / "a.yaml", **more))
    assert (status, out.exists()) == (2, False)
    line = capsys.readouterr().err
    with pytest.raises(ValueError, match=said):
        raise ValueError(line)


def test_a_field_that_is_given_twice_is_refused(tmp_path, capsys):
    file = foreign.write_onnx(tmp_path / "net.onnx", foreign.layers([6, 3]))
    twice = described(tmp_path / "a.yaml")
    with open(twice, "a") as file_of_it:
        file_of_it.write("rate_hz: 10.0\n")
    status, out = run(tmp_path, file, "onnx", twice)
    assert (status, out.exists()) == (2, False)
    assert "'rate_hz' is given twice" in capsys.readouterr().err


def test_a_graph_of_another_opset_and_one_with_its_weights_beside_are_read(tmp_path):
    net, x = foreign.layers([6, 8, 3]), np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    want = pytest.approx(foreign.apply(net, x, np.tanh), abs=1e-5)
    assert ForeignGraph(foreign.write_onnx(tmp_path / "old.onnx", net, opset=11)).forward(x, {})[0] == want
    model = onnx.load(foreign.write_onnx(tmp_path / "net.onnx", net))
    onnx.save(model, tmp_path / "b.onnx", save_as_external_data=True, location="b.onnx.data", size_threshold=0)
    assert ForeignGraph(str(tmp_path / "b.onnx")).forward(x, {})[0] == want
    model = onnx.load(tmp_path / "net.onnx")
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))  # as tf2onnx declares it, without a node of it
    onnx.save(model, tmp_path / "d.onnx")
    assert ForeignGraph(str(tmp_path / "d.onnx")).forward(x, {})[0] == want
    model = onnx.load(tmp_path / "net.onnx")
    onnx.save(model, tmp_path / "c.onnx", save_as_external_data=True, location="elsewhere", size_threshold=0)
    with pytest.raises(PolicyFileError, match="its weights are in 'elsewhere', which is not read"):
        ForeignGraph(str(tmp_path / "c.onnx"))


def test_graphs_that_are_no_plain_network_are_refused(tmp_path):
    net = foreign.layers([6, 3])
    state = [helper.make_tensor_value_info("h_in", TensorProto.FLOAT, [1, 1, 8])]
    with pytest.raises(PolicyFileError, match="inputs are obs, h_in; it must take one vector"):
        ForeignGraph(foreign.write_onnx(tmp_path / "a.onnx", net, extra=state))
    with pytest.raises(PolicyFileError, match="is no ONNX file|not read"):
        (tmp_path / "b.onnx").write_bytes(b"\x80\x04pickle")
        ForeignGraph(str(tmp_path / "b.onnx"))
    with pytest.raises(PolicyFileError, match="network.output: 'value' is not one of actions"):
        ForeignGraph(foreign.write_onnx(tmp_path / "c.onnx", net), "value")
    with pytest.raises(PolicyFileError, match="is no zip of Stable-Baselines3"):
        sb3.from_sb3(foreign.write_onnx(tmp_path / "d.onnx", net), {})
    with pytest.raises(PolicyFileError, match=r"only those of linear layers \(MlpPolicy\)"):
        held = {"features_extractor.cnn.0.weight": torch.zeros(1)}
        sb3.from_sb3(foreign.write_sb3(tmp_path / "e.zip", net, held=held), {})
    with pytest.raises(PolicyFileError, match="network.activation: the file says"):
        sb3.from_sb3(foreign.write_sb3(tmp_path / "f.zip", net, {"policy_kwargs": {"activation_fn": "os.system"}}), {})


def test_it_runs_in_c_too(tmp_path):
    file = foreign.write_onnx(tmp_path / "net.onnx", foreign.layers([26, 8, 3]), operator="Elu")
    terms = [{**JOINTS, "history": 4}, {"signal": "gyro", "history": 4}, {"constant": [0.5, -0.5]}]
    description = described(tmp_path / "a.yaml", observation=terms)
    assert run(tmp_path, file, "onnx", description)[0] == 0
    policy = PolicyFile.load(tmp_path / "out.onnx")
    compiled = CompiledPolicy(policy)  # which checks the test vectors
    rng = np.random.default_rng(0)
    for _ in range(8):
        signals = {s.name: rng.normal(size=(1, 3)).astype(np.float32) for s in policy.inputs}
        assert compiled.step(signals)["joint_target"] == pytest.approx(policy.step(signals)["joint_target"], abs=1e-5)


def test_a_loaded_file_says_where_it_comes_from(tmp_path):
    file = foreign.write_onnx(tmp_path / "net.onnx", foreign.layers([6, 3]))
    status, out = run(tmp_path, file, "onnx", described(tmp_path / "a.yaml"))
    told = PolicyFile.load(out).metadata["training"]["adopted"]
    assert status == 0
    assert (told["from"], told["file"]) == ("onnx", "net.onnx")
    assert yaml.safe_load(told["description"])["robot"] == "toy"
    assert json.dumps(told)


def test_a_draft_that_is_not_filled_in_is_refused(tmp_path, capsys):
    file = foreign.write_onnx(tmp_path / "net.onnx", foreign.layers([6, 3]))
    assert cli.call(adopt.main, [file, "from=onnx", f"draft={tmp_path / 'a.yaml'}"]) == 0
    assert draft.UNKNOWN in (tmp_path / "a.yaml").read_text()
    status, out = run(tmp_path, file, "onnx", tmp_path / "a.yaml")
    assert (status, out.exists()) == (2, False)
    assert "a.yaml: " in capsys.readouterr().err


def test_a_foreign_file_is_told_where_to_go(tmp_path):
    file = foreign.write_onnx(tmp_path / "net.onnx", foreign.layers([6, 3]))
    with pytest.raises(PolicyFileError, match=r"not a policy file.*policies\.adopt"):
        PolicyFile.load(file)

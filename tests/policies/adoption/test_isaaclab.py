"""Policies of Isaac Lab with their IO descriptors."""

import numpy as np
import pytest
import yaml

from deploy import cli
from deploy.policy_file import PolicyFile
from policies import adopt
from sim.tasks import make
from tests.policies.adoption import foreign

JOINTS, POSE = ["LF", "LH", "RF", "RH"], [0.4, -0.4, 0.1, 0.0]


def draft(tmp_path, said, network, *task):
    """The status of the command that drafts."""
    (tmp_path / "io.yaml").write_text(yaml.safe_dump(said))
    words = [network, "from=isaaclab", f"descriptors={tmp_path / 'io.yaml'}", f"draft={tmp_path / 'a.yaml'}", *task]
    return cli.call(adopt.main, words)


def adopted(tmp_path, network):
    words = [network, "from=isaaclab", f"description={tmp_path / 'a.yaml'}", f"out={tmp_path / 'a.onnx'}"]
    return cli.call(adopt.main, words)


def test_the_descriptors_make_the_whole_description(tmp_path):
    net = foreign.layers([19, 8, 4])
    file = foreign.write_onnx(tmp_path / "policy.onnx", net, batch=1, operator="Elu", opset=11)
    assert draft(tmp_path, foreign.descriptors(JOINTS, POSE), file) == 0
    text = (tmp_path / "a.yaml").read_text()
    assert "joint_stiffness of 'robot': 25, 25, 25, 25" in text
    made = yaml.safe_load(text)
    assert made["observation"] == [
        {"signal": "angular_velocity", "scale": 0.2},
        {"signal": "joint_position", "elements": JOINTS, "offset": POSE, "clip": [-1.0, 1.0]},
        {"signal": "joint_velocity", "elements": JOINTS, "history": 2},
        {"last_action": True},
    ]
    assert made["action"] | {"command": ""} == {
        "command": "",
        "elements": JOINTS,
        "means": "value",
        "scale": 0.25,
        "offset": POSE,
    }
    assert (made["rate_hz"], made["history"]["newest"]) == (50.0, "last")
    made["robot"], made["commands"][0]["limits"] = "anymal", [-3.0, 3.0]
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(made))
    assert adopted(tmp_path, file) == 0
    policy, rng = PolicyFile.load(tmp_path / "a.onnx"), np.random.default_rng(0)
    policy.reset()
    last, before = np.zeros(4), None
    for _ in range(10):
        gyro, q, v = rng.normal(size=3), rng.normal(size=4), rng.normal(size=4)
        before = v if before is None else before
        x = np.concatenate([0.2 * gyro, np.clip(q - POSE, -1.0, 1.0), before, v, last])
        last, before = foreign.apply(net, x, lambda y: np.where(y > 0.0, y, np.expm1(y))), v
        got = policy.step({"angular_velocity": gyro, "joint_position": q, "joint_velocity": v})["position_target"]
        assert got == pytest.approx(np.clip(0.25 * last + POSE, -3.0, 3.0), abs=1e-5)


def test_a_task_of_ours_that_runs_at_another_rate_is_refused(tmp_path, capsys):
    task = make("velocity", vary=0.0)
    joints = list(reversed(task.elements()["position_offset"]))
    net = foreign.layers([6 + 4 * len(joints), len(joints)])
    file = foreign.write_onnx(tmp_path / "policy.onnx", net)
    said = foreign.descriptors(joints, [0.1] * len(joints), [("base_lin_vel", 3)])
    said["observations"]["policy"][3]["overloads"]["clip"] = [-100.0, 100.0]
    assert draft(tmp_path, said, file, "task=velocity", "task.vary=0.0", "task.steps=20") == 0
    made = yaml.safe_load((tmp_path / "a.yaml").read_text())
    assert (made["action"]["command"], made["action"]["means"]) == ("position_offset", "position")
    assert made["estimated"] == ["linear_velocity"]
    assert adopted(tmp_path, file) == 0
    assert draft(tmp_path, {**said, "scene": {"dt": 0.01}}, file, "task=velocity", "task.vary=0.0") == 0
    (tmp_path / "a.onnx").unlink()
    assert adopted(tmp_path, file) == 2
    assert "rate_hz: the policy was trained at 100 Hz, velocity runs at 50" in capsys.readouterr().err
    assert not (tmp_path / "a.onnx").exists()


def changed(place, value):
    """The descriptors with one thing in them changed."""
    said = foreign.descriptors(JOINTS, POSE)
    inner = said
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return said


TERM = ("observations", "policy", 1)
WRONG = [
    (("actions",), [], "actions: needs a list"),
    (("actions", 0, "full_path"), "isaaclab.envs.mdp.BinaryJointAction", "'BinaryJointAction' is not one of Joint"),
    (("actions", 0, "clip"), [[-1.0, 1.0]] * 4, r"actions\[0\].clip: what is commanded is clipped"),
    (("actions", 0, "scale"), [0.5, 0.5], r"actions\[0\].scale: has 2 numbers; needs one, or 4"),
    (("actions", 0, "joint_names"), ["LF", "LF", "RF", "RH"], "joint_names: holds 'LF' twice"),
    (("observations",), {"critic": []}, "observations.policy: is missing"),
    ((*TERM, "joint_pos_offsets"), [0.1], r"policy\[1\].joint_pos_offsets: has 1 numbers for 4 joints"),
    ((*TERM, "shape"), [3], r"policy\[1\].shape: is 3, but there are 4 joint_names"),
    ((*TERM, "overloads", "clip"), [1.0, -1.0], "overloads.clip: needs"),
    ((*TERM, "overloads", "history_length"), -1, "overloads.history_length: needs a whole number"),
    ((*TERM, "extras", "modifiers"), [{"func": "os:system"}], "extras.modifiers: joint_pos_rel goes through"),
    (("scene", "dt"), 0.0, "scene.dt: needs a finite number above 0"),
    (("articulations",), [1], "articulations.: needs fields and values"),
]


@pytest.mark.parametrize(("place", "value", "said"), WRONG, ids=range(len(WRONG)))
def test_descriptors_that_contradict_themselves_are_named_and_nothing_is_written(tmp_path, capsys, place, value, said):
    file = foreign.write_onnx(tmp_path / "policy.onnx", foreign.layers([19, 4]))
    assert draft(tmp_path, changed(place, value), file) == 2
    with pytest.raises(ValueError, match=said):
        raise ValueError(capsys.readouterr().err)
    assert not (tmp_path / "a.yaml").exists()


def test_a_term_without_a_descriptor_and_one_that_is_not_known_are_said(tmp_path):
    file = foreign.write_onnx(tmp_path / "policy.onnx", foreign.layers([30, 4]))
    said = foreign.descriptors(JOINTS, POSE, [("height_scan", 5, None, {"scale": [1.0, 2.0, 1.0, 1.0, 1.0]})])
    assert draft(tmp_path, said, file) == 0
    text = (tmp_path / "a.yaml").read_text()
    assert "The descriptors make 24 numbers" in text
    assert yaml.safe_load(text)["observation"][-1] == {"signal": "?height_scan", "scale": [1.0, 2.0, 1.0, 1.0, 1.0]}


def test_a_draft_needs_the_descriptors(tmp_path, capsys):
    file = foreign.write_onnx(tmp_path / "policy.onnx", foreign.layers([19, 4]))
    assert cli.call(adopt.main, [file, "from=isaaclab", f"draft={tmp_path / 'a.yaml'}"]) == 2
    assert "descriptors=FILE.yaml goes with from=isaaclab" in capsys.readouterr().err

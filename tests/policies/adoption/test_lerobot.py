"""Policies of LeRobot: what is read of a folder, what becomes of it, and what is refused."""

import hashlib
import json
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from deploy import cli
from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.trust import safetensors
from policies import adopt
from policies.adoption import lerobot
from policies.adoption.contract import contract_of
from policies.adoption.fields import DescriptionError
from policies.adoption.lerobot import act, modules
from policies.adoption.lerobot.controller import LeRobotPolicy
from policies.adoption.lerobot.description import parse
from policies.adoption.lerobot.folder import read
from sim import spec
from sim.env import make_env
from sim.tasks import make
from tests.policies.adoption import lerobot_folder as made

ROBOT = {
    "robot": "bench",
    "rate_hz": 20,
    "signals": [
        {"name": "joints", "size": 5, "unit": "rad", "elements": ["a", "b", "c", "d", "e"]},
        {"name": "object", "size": 2, "unit": "m"},
    ],
    "commands": [
        {"name": "arm", "size": 2, "unit": "rad", "limits": [-2, 2]},
        {"name": "hand", "size": 1, "unit": "m", "limits": [-1, 1]},
    ],
    "observation": [{"signal": "joints"}, {"signal": "object"}],
    "action": [{"command": "arm"}, {"command": "hand"}],
}


def adopted(folder, tmp_path, **changes):
    """The policy file, by the command."""
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(ROBOT | changes))
    told = [str(folder), "from=lerobot", f"description={tmp_path / 'a.yaml'}", f"out={tmp_path / 'a.onnx'}"]
    assert cli.call(adopt.main, told) == 0
    return PolicyFile.load(tmp_path / "a.onnx")


def held(folder, tmp_path, **changes):
    """The policy that would become the file, without torch's exporter, which takes seconds."""
    (tmp_path / "h.yaml").write_text(yaml.safe_dump(ROBOT | changes))
    asked = adopt.Config(str(folder), "lerobot", str(tmp_path / "h.yaml"), str(tmp_path / "h.onnx"))
    return lerobot.adopted(asked, {})[0]


def begun(policy, now):
    """Its first commands, of one robot, by name."""
    commands, _ = policy.act({name: value[None] for name, value in now.items()}, policy.initial_state(1))
    return {name: value[0] for name, value in commands.items()}


def signals(rng):
    return {"joints": rng.normal(size=5).astype(np.float32), "object": rng.normal(size=2).astype(np.float32)}


def test_a_plan_is_carried_out_and_made_anew(tmp_path):
    folder = made.write(tmp_path / "act", made.ACT)
    policy, told = adopted(folder, tmp_path), read(str(folder))
    assert policy.metadata["plan"] == {"horizon": 6, "replan": 4}
    network, rng = lerobot.planner_of(told).network, np.random.default_rng(0)
    policy.reset()
    for step in range(9):
        now = signals(rng)
        if step % 4 == 0:
            numbers = torch.from_numpy(np.concatenate([now["joints"], now["object"]]))[None]
            chunk = network(numbers, ()).numpy().reshape(6, 3)
        got = policy.step(now)
        want = np.clip(chunk[step % 4], [-2, -2, -1], [2, 2, 1])
        assert got["arm"] == pytest.approx(want[:2], abs=1e-5)
        assert got["hand"] == pytest.approx(want[2:], abs=1e-5)
    about = policy.metadata["training"]["adopted"]
    names = "config.json model.safetensors policy_postprocessor.json policy_preprocessor.json postprocessor.safetensors"
    sums = [
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"
        for name in (*names.split(), "preprocessor.safetensors")
    ]
    assert about["from"] == "lerobot"
    assert about["sha256"] == hashlib.sha256("".join(sums).encode()).hexdigest()


def test_elements_scales_and_the_order_of_commands_are_as_described(tmp_path):
    folder = made.write(tmp_path / "act", made.ACT)
    plain = held(folder, tmp_path)
    terms = [{"signal": "joints", "elements": ["c", "a", "b", "d", "e"], "scale": 0.5}, {"signal": "object"}]
    actions = [{"command": "hand", "scale": 0.5}, {"command": "arm", "elements": [1, 0]}]
    other = held(folder, tmp_path, observation=terms, action=actions)
    now = signals(np.random.default_rng(1))
    place = now["joints"][[2, 0, 1, 3, 4]] * np.float32(0.5)
    want, got = begun(plain, now | {"joints": place}), begun(other, now)
    assert want["arm"].min() > -2 and want["arm"].max() < 2
    assert got["hand"] == pytest.approx(0.5 * want["arm"][:1], abs=1e-5)
    assert got["arm"][1] == pytest.approx(want["arm"][1], abs=1e-5)


def test_a_diffusion_policy_begins_with_noise_of_the_file_and_sees_two_steps(tmp_path):
    folder = made.write(tmp_path / "diffusion", made.DIFFUSION | {"num_inference_steps": 2})
    policy = adopted(folder, tmp_path)
    assert policy.metadata["plan"] == {"horizon": 7, "replan": 3}
    planner, rng = lerobot.planner_of(read(str(folder))), np.random.default_rng(0)
    policy.reset()
    seen, row = [], -1
    for step in range(7):
        now = signals(rng)
        numbers = np.concatenate([now["joints"], now["object"]])[None]
        seen.append(planner.see(torch.from_numpy(numbers), ()))
        if step % 3 == 0:
            row = int(planner.noise.begin(numbers)[0, 0]) if step == 0 else (row + 1) % len(planner.noise.table)
            both = torch.cat([seen[max(0, step - 1)], seen[step]], dim=1)
            chunk = planner.network(both, torch.from_numpy(planner.noise.table[row][None])).numpy().reshape(7, 3)
        got = policy.step(now)
        want = np.clip(chunk[step % 3], [-2, -2, -1], [2, 2, 1])
        assert np.concatenate([got["arm"], got["hand"]]) == pytest.approx(want, abs=1e-5)


def test_one_that_samples_long_asks_for_steps(tmp_path):
    folder = made.write(tmp_path / "diffusion", made.DIFFUSION | {"noise_scheduler_type": "DDPM"})
    with pytest.raises(PolicyFileError, match="say sampler"):
        lerobot.planner_of(read(str(folder)))
    assert lerobot.planner_of(read(str(folder)), 4).network.sampler.times == (9, 6, 3, 0)
    with pytest.raises(PolicyFileError, match="needs 1 to 12"):
        lerobot.planner_of(read(str(folder)), 20)


@pytest.mark.slow
def test_pictures_are_raw_and_swapped_ones_change_what_is_done(tmp_path, monkeypatch):
    for module in (modules, act):
        monkeypatch.setattr(module, "WIDTHS", (8, 8, 16, 16))  # of two ResNets; test_lerobot_golden.py has whole ones
    folder = made.write(tmp_path / "act", made.ACT, pictures={"left": (32, 48), "right": (32, 48)})
    robot = [*ROBOT["signals"], {"name": "one", "picture": [32, 48]}, {"name": "two", "picture": [32, 48]}]
    names = ("observation.images.left", "observation.images.right")
    straight, crossed = dict(zip(names, ("one", "two"), strict=True)), dict(zip(names, ("two", "one"), strict=True))
    policy = adopted(folder, tmp_path, signals=robot, pictures=straight)
    assert {s.name: s.dtype for s in policy.inputs}["one"] == "uint8"
    rng = np.random.default_rng(0)
    now = signals(rng) | {name: rng.integers(0, 256, (32, 48, 3), np.uint8) for name in ("one", "two")}
    policy.reset()
    want = policy.step(now)["arm"]
    other = held(folder, tmp_path, signals=robot, pictures=crossed)
    assert begun(other, now | {"one": now["two"], "two": now["one"]})["arm"] == pytest.approx(want, abs=1e-5)
    assert np.abs(begun(other, now)["arm"] - want).max() > 1e-4
    small = [*robot[:3], {"name": "two", "picture": [24, 48]}]
    for changes, what in (
        ({"pictures": straight | {names[1]: "one"}}, "pictures.observation.images.right: one is told twice"),
        ({"pictures": {names[0]: "one"}}, "pictures: observation.images.right is missing"),
        ({"pictures": straight | {names[1]: "three"}}, "'three': the pictures are: one, two"),
        ({"pictures": straight | {"wrist": "one"}}, "'wrist': the policy's are: observation.images.left"),
        ({"pictures": straight, "signals": small}, "the policy takes 32 x 48, two has 24 x 48"),
    ):
        refused(folder, tmp_path, what, **({"signals": robot} | changes))


def refused(folder, tmp_path, what, **changes):
    """That the command refuses these, with `what` in its sentence, and writes nothing."""
    description = ROBOT | changes
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(description))
    asked = adopt.Config(str(folder), "lerobot", str(tmp_path / "r.yaml"), str(tmp_path / "r.onnx"))
    with pytest.raises((PolicyFileError, DescriptionError)) as error:
        adopt.adopt(asked, {})
    assert what in str(error.value) and not (tmp_path / "r.onnx").exists()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"observation": [{"signal": "joints"}]}, "the terms make 5 numbers (joints 5), the policy takes"),
        ({"observation": [{"signal": "joints"}, {"signal": "objects"}]}, "'objects': there are: joints, object"),
        ({"observation": [{"signal": "joints", "history": 2}]}, "take no history"),
        ({"action": [{"command": "arm"}]}, "action: says nothing of the command 'hand'"),
        ({"action": [{"command": "arm"}, {"command": "arm"}]}, "action[1].command: 'arm': is told twice"),
        ({"action": [{"command": "arm"}, {"command": "leg"}]}, "action[1].command: 'leg': the commands are"),
        (
            {"action": [{"command": "arm", "elements": [0]}, {"command": "hand"}]},
            "action[0].elements: names 1 of the 2",
        ),
        ({"commands": [{"name": "arm", "size": 2, "limits": 2}], "action": [{"command": "arm"}]}, "returns 3 numbers"),
        ({"sampler": {"steps": 5}}, "ACT takes no noise away"),
        ({"pictures": {"front": "joints"}}, "the policy's are: none"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(tmp_path, changes, what):
    refused(made.write(tmp_path / "act", made.ACT), tmp_path, what, **changes)


@pytest.mark.parametrize(
    ("file", "changes", "what"),
    [
        ("config.json", {"type": "smolvla"}, "type is 'smolvla'; adopted are: act, diffusion"),
        ("config.json", {"temporal_ensemble_coeff": 0.01}, "averages over plans are not adopted"),
        ("config.json", {"temporal_ensemble_coeff": 0.0}, "averages over plans are not adopted"),
        ("config.json", {"temporal_ensemble_coeff": 0}, "averages over plans are not adopted"),
        ("config.json", {"replace_final_stride_with_dilation": 1}, "dilation is not adopted"),
        ("config.json", {"use_peft": True}, "adapters are not adopted"),
        ("config.json", {"dim_model": 20}, "the weights lack"),
        ("config.json", {"dim_model": 10**9}, "dim_model is 1000000000; needs a whole number"),
        ("config.json", {"n_encoder_layers": 3}, "the weights lack"),
        ("config.json", {"n_decoder_layers": "1"}, "n_decoder_layers is '1'"),
        ("config.json", {"output_features": {}}, "output_features holds nothing"),
        ("policy_preprocessor.json", {"steps": []}, ""),
        ("policy_preprocessor.json", {"steps": [{"registry_name": "delta_action"}]}, "'delta_action' is not known"),
        (
            "policy_preprocessor.json",
            {"steps": [{"registry_name": "rename_observations_processor", "config": {"rename_map": {"a": "b"}}}]},
            "rename_observations_processor renames",
        ),
        (
            "policy_postprocessor.json",
            {"steps": [{"registry_name": "unnormalizer_processor", "config": {"eps": 1e-8}, "state_file": "../x"}]},
            "must be in the folder",
        ),
    ],
)
def test_a_folder_that_is_not_understood_is_refused(tmp_path, file, changes, what):
    folder = made.changed(made.write(tmp_path / "act", made.ACT), file, **changes)
    if not what:  # without a normaliser: numbers as they are
        assert "observation.state" not in read(str(folder)).normalisers
        return
    refused(folder, tmp_path, what)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"beta_schedule": "linear", "beta_start": -1}, "beta_start is -1"),
        ({"beta_schedule": "scaled_linear", "beta_end": 1.5}, "beta_end 1.5"),
        ({"beta_start": 10**400}, "beta_start is 1000"),
        ({"n_groups": 7}, "its numbers make no diffusion network: num_channels"),
        ({"kernel_size": 4}, "the weights lack"),
    ],
)
def test_numbers_that_make_no_network_are_refused_by_file(tmp_path, changes, what):
    folder = made.changed(made.write(tmp_path / "diffusion", made.DIFFUSION), "config.json", **changes)
    with pytest.raises(PolicyFileError) as error:
        lerobot.planner_of(read(str(folder)))
    assert what in str(error.value) and str(folder) in str(error.value)


@pytest.mark.parametrize(
    ("pictures", "what"),
    [
        ({"huge": (1_000_000, 1_000_000)}, "'observation.images.huge' has (3, 1000000, 1000000); sides are at most"),
        ({f"eye{k}": (64, 64) for k in range(17)}, "17 pictures; the most are 16"),
    ],
)
def test_pictures_are_bounded_before_a_network_is_made(tmp_path, pictures, what):
    folder = made.write(tmp_path / "act", made.ACT)
    inputs = json.loads((folder / "config.json").read_text())["input_features"]
    inputs |= {f"observation.images.{k}": {"type": "VISUAL", "shape": [3, *sides]} for k, sides in pictures.items()}
    refused(made.changed(folder, "config.json", input_features=inputs), tmp_path, what)


@pytest.mark.parametrize(
    ("file", "name"),
    [("preprocessor", "observation.environment_state.min"), ("postprocessor", "action.mean")],
)
def test_statistics_of_another_size_are_refused_by_name(tmp_path, file, name):
    folder = made.write(tmp_path / "act", made.ACT)
    held, _ = safetensors.read(str(folder / f"{file}.safetensors"), 1e6)
    (folder / f"{file}.safetensors").write_bytes(safetensors.to_bytes({**held, name: np.zeros(9, np.float32)}))
    refused(folder, tmp_path, f"statistics: {name} has 9 numbers")


@pytest.mark.parametrize("file", ["preprocessor", "postprocessor"])
def test_a_policy_that_is_normalised_twice_is_refused(tmp_path, file):
    folder = made.write(tmp_path / "act", made.ACT)
    path = f"policy_{file}.json"
    steps = json.loads((folder / path).read_text())["steps"]
    refused(
        made.changed(folder, path, steps=[*steps, steps[1]]), tmp_path, f"{path}: two steps {steps[1]['registry_name']}"
    )


def test_other_files_are_refused(tmp_path):
    folder = made.write(tmp_path / "act", made.ACT)
    refused(folder / "config.json", tmp_path, "is no folder")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1])
    refused(folder, tmp_path, "its tensors are")
    (folder / "model.safetensors").unlink()
    refused(folder, tmp_path, "cannot be read")
    (folder / "config.json").write_text("[")
    refused(folder, tmp_path, "is no JSON")


def test_the_draft_says_what_the_folder_and_the_task_tell(tmp_path):
    pictures = {"front_camera": (64, 64), "top": (64, 64)}
    folder = made.write(tmp_path / "act", made.ACT, numbers=(30,), pictures=pictures, actions=4)
    told = [str(folder), "from=lerobot", f"draft={tmp_path / 'd.yaml'}"]
    cameras = 'task.cameras=["front_camera","wrist_camera"]'
    assert cli.call(adopt.main, [*told, "task=arm_push", cameras]) == 0
    text = (tmp_path / "d.yaml").read_text()
    found = yaml.safe_load(text)
    assert found["pictures"] == {
        "observation.images.front_camera": "front_camera",
        "observation.images.top": "?",
    }
    assert [action["command"] for action in found["action"]] == ["hand_velocity", "gripper_target"]
    assert found["observation"][0] == {"signal": "joint_position"} and len(found["observation"]) == 6
    assert "# observation.state in its training:" in text
    assert cli.call(adopt.main, told) == 0
    found = yaml.safe_load((tmp_path / "d.yaml").read_text())
    assert found["signals"][1] == {"name": "front_camera", "picture": [64, 64]}
    assert json.dumps(found).count("?") == 6
    parse("x", yaml.safe_load(yaml.safe_dump(ROBOT)))


CAMERAS = ["front_camera", "wrist_camera"]
PICTURES = {f"observation.images.{name}": name for name in CAMERAS}
JOINTS = ["joint_position", "joint_velocity", "gripper_opening", "hand_position", "hand_rotation", "goal_position"]


def looked_at(folder, **changes):
    """What the statistics of the folder say of arm_push, read as described."""
    told = {
        "task": "arm_push",
        "task_settings": {"cameras": CAMERAS},
        "observation": [{"signal": name} for name in JOINTS],
        "pictures": PICTURES,
        "action": [{"command": "hand_velocity"}, {"command": "gripper_target"}],
    }
    description = parse("x", told | changes)
    contract = contract_of(description, pictures=True)
    policy = LeRobotPolicy(description, contract, read(str(folder)), SimpleNamespace(horizon=6, replan=4))
    return lerobot.remarks(policy, 4, 3), [reading.name for reading in policy.readings()]


def test_statistics_name_swapped_cameras_and_permuted_joints(tmp_path):
    size = dict.fromkeys(CAMERAS, (64, 64))
    folder = made.write(tmp_path / "act", made.ACT, numbers=(30,), pictures=size, actions=4)
    task = make("arm_push", cameras=CAMERAS)
    with closing(make_env(task, 4, 11)) as env:  # other episodes than those that are looked at
        env.reset(range(4), range(4))
        signals = env.observe()
    numbers = spec.pack(spec.numbers(task.policy), signals)
    held, _ = safetensors.read(str(folder / "preprocessor.safetensors"), 1e6)
    held = dict(held)
    held["observation.state.min"], held["observation.state.max"] = (
        numbers.min(axis=0) - 0.05,
        numbers.max(axis=0) + 0.05,
    )
    for name, camera in PICTURES.items():
        held[f"{name}.mean"] = (signals[camera].mean(axis=(0, 1, 2)) / 255.0).astype(np.float32).reshape(3, 1, 1)
    (folder / "preprocessor.safetensors").write_bytes(safetensors.to_bytes(held))
    found, names = looked_at(folder)
    assert found == []
    crossed = dict(zip(PICTURES, reversed(CAMERAS), strict=True))
    (line,), _ = looked_at(folder, pictures=crossed)
    front, wrist = PICTURES
    assert line == f"{front} and {wrist}: their colours are those of front_camera and wrist_camera: exchanged?"
    permuted = [{"signal": "joint_position", "elements": [1, 0, 2, 5, 4, 3, 6]}, *({"signal": n} for n in JOINTS[1:])]
    found, _ = looked_at(folder, observation=permuted)
    assert any(line.startswith("observation.state[3] is joint_position[5]: ") for line in found)
    degrees = [{"signal": "joint_position", "scale": 57.3}, *({"signal": name} for name in JOINTS[1:])]
    assert any(
        "observation.state[3] is joint_position[3]" in line for line in looked_at(folder, observation=degrees)[0]
    )
    assert names[0] == f"pictures: {front} and {wrist} exchanged" and len(names) == len(set(names))
    assert any(name.startswith("action[0] hand_velocity") for name in names)
    assert any(name.startswith("action[1] gripper_target") for name in names)

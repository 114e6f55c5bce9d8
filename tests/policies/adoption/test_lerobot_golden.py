"""Policies that LeRobot 0.4.4 itself made, saved and played: our plans and policy files act as the library did.

tests/golden/write_lerobot_policies.py wrote their folders and the library's actions; LeRobot is not needed here.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from deploy import cli
from deploy.policy_file import PolicyFile
from deploy.trust import safetensors
from policies import adopt
from policies.adoption import lerobot
from policies.adoption.lerobot.folder import read
from policies.models.chunking import NoiseTable
from tests.policies.adoption import lerobot_folder as made
from tests.policies.adoption.test_lerobot import ROBOT

GOLDEN = Path(__file__).resolve().parents[2] / "golden/lerobot_policies"
LIMITS = (-50, 50)  # wider than all that they do


def unpacked(name, folder):
    """The folder with all of its weights, the library's actions (steps, 3), and its noise (1, k) or None."""
    shutil.copytree(GOLDEN / name, folder)
    if (folder / "weights.json").exists():
        kept, _ = safetensors.read(str(folder / "model.safetensors"), 1e6)
        drawn = made.drawn(json.loads((folder / "weights.json").read_text()))
        (folder / "model.safetensors").write_bytes(safetensors.to_bytes({**kept, **drawn}))
    with np.load(folder / "played.npz") as played:
        return played["actions"], played.get("noise")


@pytest.mark.parametrize("name", ["act", "act_pictures", "diffusion", "diffusion_pictures", "diffusion_other"])
def test_plans_are_the_librarys(name, tmp_path):
    actions, noise = unpacked(name, tmp_path / name)
    folder = read(str(tmp_path / name))
    planner = lerobot.planner_of(folder)
    if noise is not None:
        planner.noise = NoiseTable(noise)
    numbers, frames = made.told(bool(folder.pictures))
    state, plan = planner.initial_state(1), None
    for step, want in enumerate(actions):
        due = step % planner.replan
        left = np.full((1, 1), (planner.replan - due) % planner.replan, np.float32)
        fresh, after = planner.plan(numbers[step][None], [seen[step][None] for seen in frames.values()], state, left)
        state = state | after
        plan = plan if fresh is None else fresh.reshape(-1, 3)
        assert plan[due] == pytest.approx(want, abs=2e-5), step
    assert np.ptp(actions, axis=0).min() > 1e-3  # what it sees matters


# test_lerobot.py compares files of both kinds with their planners, and the test above the planners with the library.
@pytest.mark.long
@pytest.mark.parametrize("name", ["act", "diffusion"])
def test_a_policy_file_commands_what_the_library_did(name, tmp_path, monkeypatch):
    actions, noise = unpacked(name, tmp_path / name)
    if noise is not None:
        monkeypatch.setattr(NoiseTable, "normal", lambda size: NoiseTable(noise))
    commands = [command | {"limits": LIMITS} for command in ROBOT["commands"]]
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(ROBOT | {"commands": json.loads(json.dumps(commands))}))
    asked = [str(tmp_path / name), "from=lerobot", f"description={tmp_path / 'a.yaml'}", f"out={tmp_path / 'a.onnx'}"]
    assert cli.call(adopt.main, asked) == 0
    policy, (numbers, _) = PolicyFile.load(tmp_path / "a.onnx"), made.told(False)
    policy.reset()
    for row, want in zip(numbers, actions, strict=True):
        got = policy.step({"joints": row[:5], "object": row[5:]})
        assert np.concatenate([got["arm"], got["hand"]]) == pytest.approx(want, abs=2e-5)

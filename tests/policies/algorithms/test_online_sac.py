"""Learning where the robot is, with its control loop in a process of its own: from what, resumed, refused."""

import subprocess
import sys
import time

import numpy as np
import pytest

from deploy.remote.online import MARKS, Layout
from policies.algorithms import LearningError, LostBaseError
from policies.algorithms.online_sac import OnlineSac, OnlineSacConfig, robot
from policies.algorithms.online_sac.robot import KEPT, Pairs, left_behind
from sim import spec
from sim.tasks import make

TASK = make("arm_reach")
LAYOUT = Layout(TASK.policy, TASK.commands)
SMALL = {
    "total_steps": 60,
    "warmup_steps": 10,
    "batch_size": 16,
    "hidden": [16],
    "critic_hidden": [16],
    "critics": 2,
    "report_every": 20,
    "send_every": 0.5,
    "robot": "driver=simulated settle=0 priority=0",
}


def learner(tmp_path, seed=0, **settings):
    made = OnlineSac(TASK, OnlineSacConfig(**{**SMALL, **settings}), seed)
    made.dump_to(tmp_path / "diverged")
    return made


def rows(flights):
    """A control step of one robot for each of these flights; signals count up."""
    made = np.zeros((len(flights), LAYOUT.width), np.float32)
    made[:, : spec.size(TASK.policy)] = 0.01 * np.arange(len(flights))[:, None]
    made[:, spec.size(TASK.policy) : -len(MARKS)] = 0.5
    made[:, -len(MARKS)], made[:, -len(MARKS) + MARKS.index("usable")] = flights, 1.0
    return made


def test_two_steps_of_one_flight_make_a_transition():
    pairs, told = Pairs(LAYOUT), rows([0, 0, 0, 1, 1])
    found = [pairs.add(told[k : k + 1]) for k in range(5)]
    assert found[0] is None and [bool(t.usable[0]) for t in found[1:]] == [True, True, False, True]
    np.testing.assert_array_equal(found[1].next_signals, found[2].signals)
    told[2, 0] = np.nan
    pairs = Pairs(LAYOUT)
    found = [pairs.add(told[k : k + 1]) for k in range(5)]
    assert [bool(t.usable[0]) for t in found[1:]] == [True, False, False, True]


def test_it_learns_from_what_the_robot_did(tmp_path):
    one = learner(tmp_path)
    metrics = [*one.learn()]
    path = one.path
    assert metrics[-1]["progress"] == 1.0 and metrics[-1]["env_steps"] == 60
    assert metrics[-1]["updates_per_step"] > 1.0 and path.gradient_steps > 50
    assert metrics[-1]["unusable"] <= 3 and metrics[-1]["human"] == 0  # the first steps, while the guard waits
    data, size = path.buffer.data, path.buffer.size
    assert size >= 55
    named = spec.unpack(TASK.policy, np.zeros((1, spec.size(TASK.policy)), np.float32))
    assert named.keys() == {s.name for s in TASK.policy}
    reward, success, _ = TASK.sensed_reward(named)
    assert reward.shape == success.shape == (1,)
    assert (data["terms"][:size, 0] < 0).all() and data["action"][:size].abs().max() <= 1.0
    assert data["action"][:size].std() > 0.1  # it explores
    same = (data["next_x"][: size - 1] == data["x"][1:size]).all(1)
    assert same.float().mean() > 0.9
    assert one.controller().network.inputs == path.env.feature_size


def test_scores_of_a_simulated_robot_are_told_once_per_flight(tmp_path):
    told = [*learner(tmp_path, robot=SMALL["robot"] + " seconds=1.0", total_steps=100).learn()]
    scored = [row for row in told if "score_duration" in row]
    assert scored and len(scored) <= told[-1]["flights"] and "score_success" not in scored[0]
    assert all(row["score_duration"] == 1.0 for row in scored)


def test_a_run_goes_on_with_what_the_robot_did_meanwhile(tmp_path):
    first = learner(tmp_path, total_steps=200)
    learning = first.learn()
    next(learning)
    first.state_dict()
    next(learning)
    state = first.state_dict()
    known = first.path.known
    assert known >= 20
    first.path.robot._connection.close()  # as if this process had died
    first.path.robot._process.wait(20)
    kept = tmp_path / "robot" / KEPT.format(1)
    with np.load(kept) as file:
        assert int(file["first"]) <= known < int(file["first"]) + len(file["rows"])
        more = int(file["first"]) + len(file["rows"]) - known
    learning.close()
    second = learner(tmp_path, total_steps=200)
    second.load_state_dict(state)
    before = second.path.iteration
    behind, last = left_behind(tmp_path / "robot", LAYOUT, second.path.session, second.path.known)
    assert len(behind) == more and last == 1 and not kept.exists()
    kept.with_suffix(".read").replace(kept)
    metrics = next(second.learn())
    assert metrics["env_steps"] >= before + more - 1 and second.path.session == 2


def test_a_learner_that_is_killed_leaves_a_robot_that_stands(tmp_path):
    settings = [f"algorithm.{k}={v}".replace(" ", "") for k, v in SMALL.items() if k != "robot"]
    settings = [s for s in settings if "total_steps" not in s] + ["algorithm.total_steps=100000", "checkpoint_s=0.5"]
    robot = 'algorithm.robot="driver=simulated settle=0 priority=0"'
    run = tmp_path / "run"
    command = [sys.executable, "-m", "policies.train", "task=arm_reach", "algorithm=online_sac", *settings, robot]
    command += ["task.steps=1000"]  # it is in the middle of a flight
    process = subprocess.Popen([*command, f"out={run}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        began = time.monotonic()
        while not (run / "checkpoint.npz").exists():
            assert process.poll() is None and time.monotonic() - began < 120, process.communicate()[0]
            time.sleep(0.1)
        time.sleep(1.0)
    finally:
        process.kill()
        process.communicate()
    kept = run / "robot" / KEPT.format(1)
    while not kept.exists():
        assert time.monotonic() - began < 150
        time.sleep(0.1)
    with np.load(kept) as file:
        told = file["rows"]
    _, sent, marks = LAYOUT.split(told)
    sent, usable = (values[np.isfinite(sent).all(axis=1)] for values in (sent, marks["usable"]))
    assert not usable[-1] and not sent[-1, :3].any()  # the hand stands


def test_a_robot_that_is_lost_ends_the_run_and_one_that_cannot_begin_is_named(tmp_path):
    one = learner(tmp_path, total_steps=1000)
    learning = one.learn()
    next(learning)
    one.path.robot._process.kill()
    with pytest.raises(LostBaseError, match="the robot's control loop has ended"):
        for _ in learning:
            pass
    with pytest.raises(LearningError, match="the robot: nobody says how a panda that is stuck frees itself"):
        next(learner(tmp_path, robot="driver=simulated recovery=true").learn())
    with pytest.raises(LearningError, match="the robot: unknown key 'speed'"):
        next(learner(tmp_path, robot="driver=simulated speed=3").learn())


def test_a_damaged_file_is_named(tmp_path):
    folder = tmp_path / "robot"
    folder.mkdir()
    (folder / KEPT.format(3)).write_bytes(b"nonsense")
    with pytest.raises(LearningError, match=r"unlearned_3.npz, what the robot did when nobody learned, cannot be read"):
        left_behind(folder, LAYOUT, 0, 0)
    np.savez(folder / KEPT.format(3), first=0, rows=np.zeros((4, 2)))
    with pytest.raises(LearningError, match="rows of shape"):
        left_behind(folder, LAYOUT, 0, 0)


def test_a_file_that_unpacks_to_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(robot, "LARGEST_KEPT", 1 << 16)
    np.savez_compressed(tmp_path / KEPT.format(3), first=0, rows=np.zeros((1 << 14, LAYOUT.width), np.float32))
    with pytest.raises(LearningError, match="unpacks to more than 65536 bytes"):
        left_behind(tmp_path, LAYOUT, 0, 0)
    np.savez(tmp_path / KEPT.format(3), first=np.inf, rows=rows([0]))
    with pytest.raises(LearningError, match="cannot be read: cannot convert float infinity"):
        left_behind(tmp_path, LAYOUT, 0, 0)


def test_steps_that_were_learned_from_are_left_out(tmp_path):
    folder = tmp_path / "robot"
    folder.mkdir()
    np.savez(folder / KEPT.format(2), first=10, rows=rows([0] * 20))
    np.savez(folder / KEPT.format(3), first=0, rows=rows([1] * 5))
    found, last = left_behind(folder, LAYOUT, 2, 25)
    assert len(found) == 5 + 5 and last == 3 and all(one.shape == (1, LAYOUT.width) for one in found)
    assert left_behind(folder, LAYOUT, 2, 25) == ([], 2)


def test_bad_settings_are_named():
    for settings, message in (
        ({"n_step": 3}, "n_step must be 1"),
        ({"earlier": ["runs/x"]}, "algorithm.earlier, real_data must be empty"),
        ({"send_every": 0.0}, "send_every must be positive"),
    ):
        with pytest.raises(ValueError, match=message):
            OnlineSacConfig(**settings)
    with pytest.raises(ValueError, match="online_sac learns by torch"):
        OnlineSac(TASK, OnlineSacConfig(path="fused"), 0)

"""The control loop of a robot that learns, as a process: it tells what happened, takes policies, and stops safely."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest

from deploy.policy_file import PolicyFile
from deploy.remote import online
from deploy.remote.online import END, FLIGHT, KEPT, MARKS, POLICY, STEPS, Layout
from policies.models.controller import FeaturePolicy, feature_size
from policies.models.export import to_bytes
from policies.models.networks.feed_forward import Mlp
from sim import spec
from sim.tasks import features_of, make

TASK = make("arm_reach")
LAYOUT = Layout(TASK.policy, TASK.commands)
STILL = {"std": 0.0, "correlation": 0.0}


def policy(push: float, task=TASK) -> bytes:
    """Always the same commands: `push` in [-1, 1] of each."""
    actions, sizes = spec.size(task.commands), {s.name: s.size for s in task.policy}
    seen = sum(feature_size(feature, sizes) for feature in features_of(task))
    network = Mlp([(np.zeros((actions, seen)), np.full(actions, np.arctanh(push)))])
    return to_bytes(FeaturePolicy.from_task(task, network), "the policy")


class Robot:
    """The process, and the learner's end of the link."""

    def __init__(self, folder, *settings, first=0.0):
        self.kept = folder / "kept.npz"
        (folder / "first.onnx").write_bytes(policy(first))
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "deploy.remote.online", f"link={theirs.fileno()}", f"kept={self.kept}"]
        command += [f"policy={folder / 'first.onnx'}", "driver=simulated", "real_time=true", "settle=0", "priority=0"]
        self.process = subprocess.Popen(
            [*command, *settings], pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.flights = []

    def rows(self, count):
        """At least so many control steps."""
        found = []
        while sum(map(len, found)) < count:
            assert self.connection.poll(60.0), self.process.stderr.read()
            self.take(self.connection.recv_bytes(), found)
        return np.concatenate(found)

    def take(self, message, found):
        if message[:1] == STEPS:
            found.append(np.frombuffer(message[1:], np.float32).reshape(-1, LAYOUT.width))
        else:
            assert message[:1] == FLIGHT
            self.flights.append(json.loads(message[1:]))

    def send(self, push, how=STILL, task=TASK):
        self.connection.send_bytes(POLICY + json.dumps(how).encode() + b"\n" + policy(push, task))

    def rest(self):
        """All that comes until the process is over; its exit status, and what it said."""
        found = []
        try:
            while self.connection.poll(60.0):
                self.take(self.connection.recv_bytes(), found)
        except EOFError:
            pass
        said = self.process.communicate(timeout=60)
        return found, self.process.returncode, said[1]


@pytest.fixture
def started(tmp_path):
    made = []

    def start(*settings, **first):
        made.append(Robot(tmp_path, *settings, **first))
        return made[-1]

    yield start
    for robot in made:
        robot.process.kill()
        robot.process.communicate()
        robot.connection.close()


def shares(rows):
    """What was sent, in -1..1 of the limits."""
    low, high = spec.limits(TASK.commands)
    return 2.0 * (LAYOUT.split(rows)[1] - low) / (high - low) - 1.0


def test_it_tells_what_happened_and_takes_policies(started):
    robot = started("episodes=2", first=0.25)
    rows = robot.rows(8)
    seen, _, marks = LAYOUT.split(rows)
    assert np.isfinite(seen).all() and marks["robot"].tolist() == [0, 1] * (len(rows) // 2)
    assert (marks["flight"] == 0).all() and (marks["usable"] == 1).all() and not marks["person"].any()
    np.testing.assert_allclose(shares(rows), 0.25, atol=1e-5)
    goal = spec.slices(TASK.policy)["goal_position"]
    assert (seen[0, goal] == seen[2, goal]).all() and (seen[0, goal] != seen[1, goal]).any()
    robot.send(-0.5)
    changed = shares(robot.rows(80))
    assert np.allclose(changed[-1], -0.5, atol=1e-5)
    robot.connection.send_bytes(END)
    _, status, _ = robot.rest()
    assert status == 0 and not robot.kept.exists()
    assert robot.flights[-1]["policies"] == 1 and robot.flights[-1]["refused"] == 0


def test_flights_follow_one_another_as_other_episodes(started):
    robot = started("seconds=0.5")
    rows = robot.rows(25)
    seen, sent, marks = LAYOUT.split(rows)
    assert set(marks["flight"]) >= {0, 1}
    ends = np.flatnonzero(np.diff(marks["flight"]))  # how an episode ended is told without commands
    assert np.isnan(sent[ends]).all() and not marks["usable"][ends].any() and np.isfinite(seen[ends]).all()
    goal = spec.slices(TASK.policy)["goal_position"]
    goals = [seen[marks["flight"] == k][0, goal] for k in (0, 1)]
    assert (goals[0] != goals[1]).any()
    assert robot.flights[0]["steps"] == 10
    scores = robot.flights[0]["scores"]
    assert scores.keys() == TASK.scores.keys() and scores["duration"] == 0.5 and scores["success"] == 0.0


def test_it_explores_within_limits_and_noise_lasts(started):
    robot = started("episodes=8", "noise_seed=3")
    robot.send(0.0, {"std": 0.8, "correlation": 0.9})
    sent = shares(robot.rows(8 * 45)).reshape(-1, 8, spec.size(TASK.commands))[20:]
    assert 0.3 < sent.std() < 0.9 and np.abs(sent).max() <= 1.0 + 1e-5
    flat = sent[:-1].reshape(-1), sent[1:].reshape(-1)
    assert np.corrcoef(*flat)[0, 1] > 0.6


def test_a_policy_with_another_contract_is_not_flown(started):
    robot = started(first=0.25)
    robot.send(0.5, task=make("arm_push"))
    robot.connection.send_bytes(POLICY + b"{}\nnonsense")
    assert np.allclose(shares(robot.rows(30)), 0.25, atol=1e-5)
    robot.connection.send_bytes(END)
    robot.rest()
    assert robot.flights[-1]["refused"] == 2 and robot.flights[-1]["policies"] == 0


@pytest.mark.parametrize("settings", [(), ("episodes=2",)])
def test_when_the_learner_dies_the_robot_stops_and_nothing_is_lost(started, settings):
    robot = started(*settings, first=0.25)
    rows = robot.rows(20)
    robot.connection.send_bytes(KEPT + b"10")
    rows = np.concatenate([rows, robot.rows(10)])
    robot.connection.close()
    _, said = robot.process.communicate(timeout=60)
    assert robot.process.returncode == 1 and "the learner is gone" in said
    with np.load(robot.kept, allow_pickle=False) as kept:
        first, left = int(kept["first"]), kept["rows"]
    assert first == 10
    both = np.concatenate([rows[:10], left])
    np.testing.assert_array_equal(both[: len(rows)], rows)
    left = left[np.isfinite(LAYOUT.split(left)[1]).all(axis=1)]  # but for how an episode ended
    sent, marks = shares(left), LAYOUT.split(left)[2]
    # The hand stands still, the gripper holds what it holds.
    assert not marks["usable"][-1] and np.allclose(sent[-1], [0.0, 0.0, 0.0, 0.25], atol=1e-5)


def test_ctrl_c_for_the_learner_is_not_for_the_robot_but_sigterm_ends_it(started):
    robot = started()
    robot.rows(5)
    os.kill(robot.process.pid, signal.SIGINT)
    began = time.monotonic()
    robot.rest()
    assert time.monotonic() - began < 10.0 and robot.process.returncode == 0


def test_a_learner_that_hangs_for_too_long_is_taken_for_gone(tmp_path, monkeypatch):
    """What it does not keep fills the memory of the loop that flies: without end, until nothing flew."""
    monkeypatch.setattr(online, "MOST_HELD", 20_000)
    ours, theirs = socket.socketpair()
    first = PolicyFile.from_bytes(policy(0.0), "the first")
    link, told = online.Link(Connection(ours.detach()), str(tmp_path / "kept.npz"), first, 1), 0
    while not link.lost:
        link.tell(np.full((1, LAYOUT.width), told, np.float32))
        told += 1
        assert told < 10_000
    assert link.save() == told
    theirs.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["real_time=false"], "by the clock: real_time=true"),
        (["real_time=true", "log=a.mcap"], "a policy that is replaced flies without them"),
        (["real_time=true", "require_signature=true"], "nobody signs the policies that a learner sends"),
        (["real_time=true", "recovery=true"], "nobody says how a panda that is stuck frees itself"),
    ],
)
def test_what_does_not_go_is_refused(tmp_path, settings, message):
    (tmp_path / "first.onnx").write_bytes(policy(0.0))
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "deploy.remote.online", f"link={theirs.fileno()}", "kept=x", "driver=simulated"]
    command += [f"policy={tmp_path / 'first.onnx'}", *settings]
    done = subprocess.run(command, pass_fds=[theirs.fileno()], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and message in done.stderr
    ours.close(), theirs.close()


def test_rows_are_laid_out_by_name():
    rows = np.arange(2 * LAYOUT.width, dtype=np.float32).reshape(2, -1)
    seen, sent, marks = LAYOUT.split(rows)
    assert seen.shape == (2, spec.size(TASK.policy)) and sent.shape == (2, spec.size(TASK.commands))
    assert [*marks] == [*MARKS] and marks["state"].tolist() == rows[:, -1].tolist()

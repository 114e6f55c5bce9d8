"""Teleoperation: the real command in a real terminal, by somebody who presses keys; by gamepad; what is refused."""

import fcntl
import os
import pty
import re
import select
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from deploy.teleop.devices import TeleopCommand, TeleopError
from deploy.teleop.screen import Terminal, Viewer, blocks, screen
from policies import collect
from policies.collect import Config, stored
from policies.teleop.session import EndEffectorControl, Settings, teleoperate
from sim.tasks import make
from tests.policies.toy_reach import ToyReach

pytestmark = pytest.mark.timed

TOY = "tests.policies.toy_reach:ToyReach"
ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 30.0  # s


class Session:
    """`python -m policies.collect policy=teleop` in a pseudo terminal, and what it shows."""

    def __init__(self, out, *arguments):
        self.user, program = pty.openpty()
        command = [sys.executable, "-m", "policies.collect", f"task={TOY}", f"out={out}", "policy=teleop", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            **dict.fromkeys(("stdin", "stdout", "stderr"), program),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C reaches it
        )
        os.close(program)
        self.shown = ""

    def press(self, keys):
        os.write(self.user, keys)

    def read(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0.0 and select.select([self.user], [], [], left)[0]:
            try:
                self.shown += os.read(self.user, 65536).decode(errors="replace")
            except OSError:  # it has ended
                return

    def until(self, pattern, keys=b""):
        """Press keys again and again until it shows that; what matched."""
        began, start = time.monotonic(), len(self.shown)
        while not (found := re.search(pattern, self.shown[start:])):
            assert time.monotonic() - began < PATIENCE, (pattern, self.shown[-2000:])
            if keys:
                self.press(keys)
            self.read(0.05)
        return found

    def end(self):
        """The exit status."""
        status = self.process.wait(PATIENCE)
        self.read(1.0)
        os.close(self.user)
        return status


def test_a_human_collects_keeps_discards_and_continues(tmp_path):
    """The goal is the middle of the plane, and far away in time."""
    settings = ["view=none", "speed=1.0", "episodes=4", "steps=600"]
    session = Session(tmp_path / "data", *settings)
    session.until("episode 0 .*begins with your first movement")
    session.press(b"n")  # nothing has happened: there is nothing to keep
    session.until(r"episode 0 +0\.[1-9] s", b"w")
    session.press(b"\x7f")  # again
    session.until("episode 0 .*begins with your first movement")
    session.until(r"episode 0 +0\.[3-9] s", b"d")
    session.press(b"n")  # keep it, as a failure
    session.until(r"episode 1 +0\.[2-9] s", b"s")
    session.press(b"y")  # as a success, whatever the task says
    session.until("episode 2 .*begins with your first movement")
    session.press(b"x")
    assert session.end() == 0 and "2 episodes of toy_reach; of the new ones 1 succeeded" in session.shown
    session = Session(tmp_path / "data", *settings)
    session.until(r"episode 2 +0\.[2-9] s", b"a")
    session.press(b"\n")
    session.until(r"episode 3 +0\.[1-9] s", b"w")
    session.press(b"\x03")  # Ctrl-C in the middle of an episode
    assert session.end() == 130
    kept = stored(ToyReach(), str(tmp_path / "data"), 10)
    assert [e.succeeded for e in kept] == [False, True, False]
    assert [e.number for e in kept] == [0, 1, 2] and all(len(e.reward) >= 2 for e in kept)
    for episode, axis, sign in zip(kept, (1, 0, 1), (-1.0, -1.0, 1.0), strict=True):
        velocity = episode.commands["velocity"]
        assert velocity[0, axis] == sign and set(velocity[:, axis]) <= {0.0, sign} and not velocity[:, 1 - axis].any()
        moved = episode.signals["position"][-1] - episode.signals["position"][0]
        assert np.allclose(moved, velocity[:-1].sum(axis=0) / 10.0, atol=1e-5)


def test_a_task_that_is_done_asks_for_the_verdict(tmp_path):
    os.mkfifo(tmp_path / "js0")
    reader = os.open(tmp_path / "js0", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(tmp_path / "js0", os.O_WRONLY)

    def event(kind, number, value):
        os.write(writer, struct.pack("=IhBB", 0, value, kind, number))

    class Watched(ToyReach):
        """Its human sees where things are, and presses Start when it is done."""

        rate_hz = 200.0

        def open(self, num, seed):
            env = super().open(num, seed)
            read = env.observe

            def reading():
                seen = read()
                away = (seen["goal"] - seen["position"])[0]
                done = np.linalg.norm(away) < self.config.radius
                for axis, sign in ((1, away[0]), (0, away[1])):
                    event(2, axis, 0 if done or abs(sign) < 0.02 else -32767 * int(np.sign(sign)))
                if done:
                    event(1, 7, 1)
                return seen

            env.observe = reading
            return env

    settings = Settings(device=str(tmp_path / "js0"), view="none", speed=1.0)
    made = list(teleoperate(Watched(), settings, 3, seed=5, first=1))
    assert [e.number for e in made] == [1, 2] and all(e.succeeded and not e.success[:-1].any() for e in made)
    os.close(writer)
    os.close(reader)


def test_a_screen_shows_the_scene(tmp_path):
    picture = np.zeros((4, 2, 3), np.uint8)
    picture[0, 0], picture[3, 1] = (255, 0, 0), (0, 0, 9)
    upper, lower = blocks(picture)
    assert upper.startswith("\x1b[38;2;255;0;0;48;2;0;0;0m\u2580") and upper.count("\u2580") == 2
    assert "\x1b[38;2;0;0;0;48;2;0;0;9m\u2580" in lower
    asked = []

    def draw(side):
        asked.append(side)
        return np.full((side, side, 3), 7, np.uint8)

    with open(tmp_path / "screen", "w+") as out:
        shown = Terminal("keys", True, out)
        shown.show(draw, "first")
        shown.show(draw, "too early")
        out.seek(0)
        text = out.read()
    assert len(asked) == 1 and text.count("\n") == asked[0] // 2 + 2  # the picture, help, the line
    assert "keys" in text and "first" in text and "too early" not in text
    with pytest.raises(ValueError, match="view 'radio' is not one of auto, terminal, web, window, none"):
        screen("radio", "")


def test_a_browser_shows_the_scene(monkeypatch, capsys):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(ValueError, match="there is no display here: view=web shows it in a browser"):
        screen("window", "")
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = min(probe.getsockname()[1], 65000)
    viewer = Viewer(True, "keys", port)
    viewer.show(lambda side: np.zeros((side, side, 3), np.uint8), "episode 0")
    said = capsys.readouterr().err
    address = next(line for line in said.splitlines() if f"127.0.0.1:{port}" in line)
    page = urllib.request.urlopen(address, timeout=PATIENCE).read()
    viewer.close()
    assert b"rerun" in page.lower() and "keys" in said


def said(x, y, z, closed=False):
    return TeleopCommand(np.array([x, y, z]), closed, True)


@pytest.mark.parametrize(
    ("name", "opened", "closed"),
    [
        ("metaworld/pick-place-v3", -1.0, 1.0),
        ("gymnasium/FetchPickAndPlace-v4", 1.0, -1.0),
        ("arm_pick_place", 0.08, 0),
    ],
)
def test_hands_become_commands(name, opened, closed):
    task = make(name)
    hand = EndEffectorControl(task, Settings())
    gripper = task.commands[1].name
    free, held = (hand.commands({}, said(0.1, 0.2, 0.3, shut)) for shut in (False, True))
    assert np.allclose(free["hand_velocity"], [[0.1, 0.2, 0.3]])
    assert np.isclose(free[gripper], opened) and np.isclose(held[gripper], closed)
    turned = EndEffectorControl(task, Settings(forward="+y")).commands(
        {}, said(0.1, 0.2, 0.3)
    )  # left is then where x ends
    assert np.allclose(turned["hand_velocity"], [[-0.2, 0.1, 0.3]])
    assert EndEffectorControl(task, Settings(speed=9.0)).speed == task.commands[0].high


def test_joints_follow_the_hand():
    """With joint positions as commands, the arm's hand goes where it is told."""
    task = make("arm_reach", control="joint")
    hand, env = EndEffectorControl(task, Settings()), task.open(1, 0)
    env.reset([0], [0])
    before = env.observe()["hand_position"][0]
    for _ in range(20):
        env.step(hand.commands(env.observe(), said(0.1, -0.1, -0.05)))
    moved = env.observe()["hand_position"][0] - before
    env.close()
    assert np.allclose(moved, (0.1, -0.1, -0.05), atol=0.025)


@pytest.mark.parametrize("name", ["gymnasium/AdroitHandDoor-v1", "gymnasium/PointMaze_UMaze-v3"])
def test_what_hands_cannot_do_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match="cannot be steered by hand: its commands are .*; needed is a hand's velocity"):
        collect.main([f"task={name}", f"out={tmp_path / 'data'}", "policy=teleop"])


def test_bad_settings_are_explained(tmp_path):
    config = Config(task=TOY, out=str(tmp_path / "data"), policy="teleop")
    with pytest.raises(TeleopError, match="unknown device 'pedals'; choices: keyboard, "):
        collect.collect(ToyReach(), config, Settings(device="pedals"))
    with pytest.raises(ValueError, match="forward 'up' is not one of"):
        Settings(forward="up")
    with pytest.raises(ValueError, match="speed must be positive, got -1.0 m/s"):
        collect.main([f"task={TOY}", f"out={tmp_path / 'data'}", "policy=teleop", "speed=-1"])

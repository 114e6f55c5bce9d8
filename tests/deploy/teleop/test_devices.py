"""Hands on devices: keys through a real pseudo terminal, a gamepad's events as the kernel writes them."""

import os
import pty
import struct
import termios

import numpy as np
import pytest

from deploy.teleop import devices
from deploy.teleop.devices import Gamepad, Keyboard, TeleopError, device


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def terminal():
    """The user's end of a terminal, and the program's."""
    user, program = pty.openpty()
    yield user, program
    for end in (user, program):
        try:
            os.close(end)
        except OSError:
            continue


@pytest.fixture
def keyboard(terminal):
    user, program = terminal
    clock = Clock()
    made = Keyboard(program, clock)
    yield user, made, clock
    made.close()


@pytest.mark.parametrize(
    ("key", "direction"),
    [
        (b"w", (1, 0, 0)),
        (b"s", (-1, 0, 0)),
        (b"a", (0, 1, 0)),
        (b"d", (0, -1, 0)),
        (b"e", (0, 0, 1)),
        (b"q", (0, 0, -1)),
        (b"\x1b[A", (1, 0, 0)),
        (b"\x1b[B", (-1, 0, 0)),
        (b"\x1b[D", (0, 1, 0)),
        (b"\x1b[C", (0, -1, 0)),
    ],
)
def test_a_key_moves_the_hand_for_a_moment(keyboard, key, direction):
    user, hands, clock = keyboard
    assert not hands.read(0.3).active
    os.write(user, key)
    said = hands.read(0.3)
    assert said.active and np.allclose(said.velocity, 0.3 * np.array(direction)) and not said.verdict
    clock.now += 0.9 * devices.PULSE
    assert np.allclose(hands.read(0.3).velocity, 0.3 * np.array(direction))
    clock.now += 0.2 * devices.PULSE
    assert not hands.read(0.3).velocity.any() and not hands.read(0.3).active


def test_keys_add_up_and_the_newest_sign_counts(keyboard):
    user, hands, _ = keyboard
    os.write(user, b"wwde\x1b[D")
    assert np.allclose(hands.read(1.0).velocity, (1.0, 1.0, 1.0))  # right, then left


def test_speed_gripper_and_verdicts(keyboard):
    user, hands, _ = keyboard
    os.write(user, b" ")
    said = hands.read(1.0)
    assert said.closed and said.active
    assert hands.read(1.0).closed and not hands.read(1.0).active
    os.write(user, b"---w")
    assert np.isclose(hands.read(1.0).velocity[0], 1.25**-3)
    os.write(user, b"+" * 50 + b"w")
    assert np.isclose(hands.read(1.0).velocity[0], 1.0)
    for key, verdict in ((b"\n", "keep"), (b"y", "success"), (b"n", "failure"), (b"\x7f", "redo"), (b"x", "quit")):
        os.write(user, key)
        assert hands.read(1.0).verdict == verdict
        assert not hands.read(1.0).verdict
    hands.begin()
    assert not hands.read(1.0).closed and not hands.read(1.0).velocity.any()
    os.write(user, b"o1\x1bOPz")  # keys that mean nothing
    assert not hands.read(1.0).active


def test_a_key_may_come_in_pieces(keyboard):
    user, hands, _ = keyboard
    os.write(user, b"\x1b")
    assert not hands.read(1.0).active
    os.write(user, b"[A")
    assert hands.read(1.0).velocity[0] == 1.0
    os.write(user, b"\x1b")  # the escape key alone is no key of ours, and swallows none
    hands.read(1.0)
    hands.read(1.0)
    os.write(user, b"s")
    assert hands.read(1.0).velocity[0] == -1.0


def test_the_terminal_is_left_as_it_was_found(terminal):
    _, program = terminal
    before = termios.tcgetattr(program)
    hands = Keyboard(program)
    assert not termios.tcgetattr(program)[3] & (termios.ICANON | termios.ECHO)
    assert termios.tcgetattr(program)[3] & termios.ISIG  # Ctrl-C interrupts
    hands.close()
    assert termios.tcgetattr(program) == before


def test_a_terminal_that_goes_away_is_said(keyboard):
    user, hands, _ = keyboard
    os.close(user)
    with pytest.raises(TeleopError, match="the terminal is gone"):
        hands.read(1.0)


def test_no_terminal_is_refused(tmp_path):
    with open(tmp_path / "file", "w") as file, pytest.raises(TeleopError, match="standard input is not a terminal"):
        Keyboard(file.fileno())


class Pad:
    """Writes what the kernel would, into a FIFO."""

    def __init__(self, path):
        os.mkfifo(path)
        self.read_end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.fd = os.open(path, os.O_WRONLY)
        self.hands = Gamepad(str(path))

    def event(self, kind, number, value):
        os.write(self.fd, struct.pack("=IhBB", 12345, value, kind, number))

    def press(self, number):
        self.event(1, number, 1)
        self.event(1, number, 0)


@pytest.fixture
def pad(tmp_path):
    made = Pad(tmp_path / "js0")
    yield made
    made.hands.close()
    os.close(made.fd)
    os.close(made.read_end)


def test_sticks_move_the_hand(pad):
    assert not pad.hands.read(0.5).active
    pad.event(2, 1, -32767)  # left stick up
    pad.event(2, 0, 32767)  # and right
    pad.event(2, 4, 32767)  # right stick down
    said = pad.hands.read(0.5)
    assert said.active and np.allclose(said.velocity, (0.5, -0.5, -0.5))
    assert np.allclose(pad.hands.read(0.5).velocity, (0.5, -0.5, -0.5))  # held
    for axis in (1, 0, 4):
        pad.event(2, axis, 0)
    pad.event(2, 3, 32767)  # not ours
    assert not pad.hands.read(0.5).velocity.any()
    pad.event(2, 1, round(-0.55 * 32767))  # halfway beyond the dead zone of a tenth
    assert np.allclose(pad.hands.read(1.0).velocity, (0.5, 0.0, 0.0), atol=1e-3)
    pad.event(2, 1, round(0.09 * 32767))
    assert not pad.hands.read(1.0).active


def test_buttons(pad):
    pad.press(0)
    said = pad.hands.read(1.0)
    assert said.closed and said.active and pad.hands.read(1.0).closed
    pad.press(0)
    assert not pad.hands.read(1.0).closed
    for number, verdict in ((7, "keep"), (3, "success"), (2, "failure"), (6, "redo"), (8, "quit")):
        pad.press(number)
        assert pad.hands.read(1.0).verdict == verdict and not pad.hands.read(1.0).verdict
    pad.event(1, 5, 1)  # a shoulder button takes over, still
    assert pad.hands.read(1.0).active and pad.hands.read(1.0).active
    pad.event(1, 5, 0)
    assert not pad.hands.read(1.0).active


def test_what_was_held_before_is_no_press(pad):
    for number in (0, 7):
        pad.event(0x81, number, 1)  # the kernel's first events: how things are
    pad.event(0x82, 1, -32767)
    said = pad.hands.read(1.0)
    assert not said.closed and not said.verdict and said.velocity[0] == 1.0


def test_events_may_come_in_pieces(pad):
    whole = struct.pack("=IhBB", 1, -32767, 2, 1)
    os.write(pad.fd, whole[:3])
    assert not pad.hands.read(1.0).velocity.any()
    os.write(pad.fd, whole[3:])
    assert pad.hands.read(1.0).velocity[0] == 1.0


def test_devices_that_are_not_there(tmp_path):
    with pytest.raises(TeleopError, match="js7: No such file or directory; plugged in ones are /dev/input/js"):
        device(str(tmp_path / "js7"))
    with pytest.raises(TeleopError, match="unknown device 'mouse'; choices: keyboard, a joystick's device"):
        device("mouse")

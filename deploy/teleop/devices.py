"""What a human's hands say: the keys of a terminal, a gamepad, or ROS 2 topics (`deploy/teleop/ros2.py`).

Nothing but the standard library: keys work over ssh, without a display; a gamepad is Linux's joystick device. Whoever
lets go stands still.
"""

from __future__ import annotations

import os
import select
import struct
import sys
import termios
import tty
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from deploy.system.clock import boottime

Array = NDArray[Any]

KEEP, SUCCESS, FAILURE, REDO, QUIT = VERDICTS = ("keep", "success", "failure", "redo", "quit")
PULSE = 0.15  # s that a key moves the hand: longer than a terminal takes to repeat a key that is held
SPEED_STEP = 1.25
CHOICES = "keyboard, a joystick's device such as /dev/input/js0, ros2 or ros2:/NAMESPACE"


class TeleopError(ValueError):
    """A device that is not there, or no more; the message says which, and what to do."""


@dataclass
class TeleopCommand:
    """What the hands say now. A verdict ends an episode and is said once."""

    velocity: Array  # (3,) m/s: forward, left, up
    closed: bool  # the gripper
    active: bool  # somebody is at it
    verdict: str = ""  # or one of VERDICTS


class Device(Protocol):
    """Something that a human steers with."""

    help: str  # one line

    def begin(self) -> None:
        """Forget what was said: an episode begins, with an open gripper."""

    def read(self, speed: float) -> TeleopCommand:
        """What it says now, without waiting; `speed` (m/s) is full speed. TeleopError when it is gone."""

    def close(self) -> None:
        """Leave everything as it was found."""


def device(name: str) -> Device:
    """The device of that name; TeleopError lists the choices."""
    if name == "keyboard":
        return Keyboard()
    if "/" in name and not name.startswith("ros2"):
        return Gamepad(name)
    if name == "ros2" or name.startswith("ros2:"):
        try:
            from deploy.teleop.ros2 import Topics
        except ModuleNotFoundError as error:
            if error.name != "rclpy":
                raise
            raise TeleopError("ros2 needs rclpy: source your ROS 2, or pip install 'sim2metal[ros]'") from None
        return Topics(name.removeprefix("ros2").removeprefix(":"))
    raise TeleopError(f"unknown device {name!r}; choices: {CHOICES}")


MOVES = {  # axis and sign
    b"w": (0, 1.0), b"s": (0, -1.0), b"a": (1, 1.0), b"d": (1, -1.0), b"e": (2, 1.0), b"q": (2, -1.0),
    b"\x1b[A": (0, 1.0), b"\x1b[B": (0, -1.0), b"\x1b[D": (1, 1.0), b"\x1b[C": (1, -1.0),
}  # fmt: skip
KEYS = {b"\r": KEEP, b"\n": KEEP, b"y": SUCCESS, b"n": FAILURE, b"\x7f": REDO, b"\b": REDO, b"x": QUIT}


class Keyboard:
    """Keys of the terminal `fd`, or of standard input. A terminal does not tell when a key is let go: see PULSE."""

    help = (
        "w s forward, back (or arrows)  a d left, right  e q up, down  space gripper  + - speed  "
        "Enter keep  y success  n failure  Backspace redo  x quit"
    )

    def __init__(self, fd: int | None = None, clock: Callable[[], float] = boottime) -> None:
        self._fd = sys.stdin.fileno() if fd is None else fd
        if not os.isatty(self._fd):
            raise TeleopError("keyboard: standard input is not a terminal; run it in one, or take another device")
        self._clock = clock
        self._before = termios.tcgetattr(self._fd)
        tty.setcbreak(self._fd)  # keys at once and without echo; Ctrl-C is still Ctrl-C
        self._rest = b""  # the beginning of a key that comes as several bytes
        self._share = 1.0  # of full speed
        self.begin()

    def begin(self) -> None:
        self._sign, self._until = np.zeros(3), np.zeros(3)
        self._closed = False

    def read(self, speed: float) -> TeleopCommand:
        now, verdict, toggled = self._clock(), "", False
        for key in self._keys():
            if key in MOVES:
                axis, self._sign[axis] = MOVES[key]
                self._until[axis] = now + PULSE
            elif key == b" ":
                self._closed, toggled = not self._closed, True
            elif key in (b"+", b"-"):
                self._share = float(np.clip(self._share * SPEED_STEP ** (1 if key == b"+" else -1), 0.05, 1.0))
            verdict = KEYS.get(key, verdict)
        moving = self._until > now
        return TeleopCommand(
            speed * self._share * self._sign * moving, self._closed, bool(moving.any()) or toggled, verdict
        )

    def _keys(self) -> list[bytes]:
        """The keys that were pressed since the last call."""
        found = b""
        while select.select([self._fd], [], [], 0.0)[0]:
            try:
                some = os.read(self._fd, 4096)
            except OSError:  # the terminal was closed
                some = b""
            if not some:
                raise TeleopError("keyboard: the terminal is gone")
            found += some
        data, keys = self._rest + found, []
        while data:
            length = 3 if data.startswith(b"\x1b[") else 1
            if data.startswith(b"\x1b") and len(data) < 3 and found:  # the rest may be on its way
                break
            keys.append(data[:length])
            data = data[length:]
        self._rest = data
        return keys

    def close(self) -> None:
        try:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        except termios.error:  # the terminal is gone, and with it what it was set to
            return


EVENT = struct.Struct("=IhBB")  # struct js_event of linux/joystick.h: ms, value, type, number
BUTTON, AXIS, INITIAL = 1, 2, 0x80
STICKS = {1: (0, -1.0), 0: (1, -1.0), 4: (2, -1.0)}  # axis number -> axis and sign: left stick, right stick's up
DEADZONE = 0.1
GRIPPER = 0
TAKE = (4, 5)  # shoulder buttons
BUTTONS = {7: KEEP, 3: SUCCESS, 2: FAILURE, 6: REDO, 8: QUIT}


@dataclass
class Gamepad:
    """Linux's joystick device; axes and buttons as the kernel's xpad driver numbers them, and hid-playstation."""

    path: str
    help: str = field(
        default="left stick forward, back, left, right  right stick up, down  A gripper  hold LB or RB to take over  "
        "Start keep  Y success  X failure  Back redo  Guide quit",
        init=False,
    )

    def __post_init__(self) -> None:
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise TeleopError(f"gamepad {self.path}: {error.strerror}; plugged in ones are /dev/input/js*") from None
        self._rest = b""
        self._sticks, self._held = np.zeros(3), set[int]()
        self.begin()

    def begin(self) -> None:
        """Sticks and buttons that are held stay so: the device tells changes only."""
        self._closed = False

    def read(self, speed: float) -> TeleopCommand:
        verdict, toggled = "", False
        for value, kind, number in self._events():
            if kind & ~INITIAL == AXIS and number in STICKS:
                axis, sign = STICKS[number]
                self._sticks[axis] = sign * value / 32767.0
            elif kind & ~INITIAL == BUTTON:
                (self._held.add if value else self._held.discard)(number)
                if kind == BUTTON and value:  # pressed now, not before it was opened
                    self._closed, toggled = self._closed ^ (number == GRIPPER), toggled or number == GRIPPER
                    verdict = BUTTONS.get(number, verdict)
        beyond = np.maximum(np.abs(self._sticks) - DEADZONE, 0.0) / (1.0 - DEADZONE)
        active = bool(beyond.any()) or toggled or not self._held.isdisjoint(TAKE)
        return TeleopCommand(speed * np.sign(self._sticks) * beyond.clip(0.0, 1.0), self._closed, active, verdict)

    def _events(self) -> list[tuple[int, int, int]]:
        """Value, type and number of what happened since the last call."""
        data = self._rest
        try:
            while some := os.read(self._fd, 64 * EVENT.size):
                data += some
        except BlockingIOError:
            pass
        except OSError as error:
            raise TeleopError(f"gamepad {self.path} is gone: {error.strerror}") from None
        whole = len(data) - len(data) % EVENT.size
        self._rest = data[whole:]
        return [(value, kind, number) for _, value, kind, number in EVENT.iter_unpack(data[:whole])]

    def close(self) -> None:
        os.close(self._fd)

"""Betaflight's own simulator (SITL), built with a policy, flies a vehicle of our engine.

    python -m tests.deploy.betaflight.sitl .../obj/main/betaflight_SITL.elf [pace] [robot]

Its checkout is not part of this repository: docs/px4.md says how it is built. Packets and ports are those of
betaflight @6dbc4218 src/platform/SIMULATOR: a vehicle's state by UDP 9003, sticks by 9004, motors' outputs by 9001.
"""

from __future__ import annotations

import math
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deploy.crazyflie.simulator.world import DT, World

GRAVITY = 9.80665
SETTINGS = """\
map AETR1234
set gps_provider = VIRTUAL
set gps_rescue_allow_arming_without_fix = ON
set motor_pwm_protocol = PWM
set failsafe_delay = 15
set min_check = 1050
set small_angle = 180
set mag_calibration = 1,1,1
set trust_mag = ON
aux 0 0 0 1700 2100 0 0
aux 1 40 1 1700 2100 0 0
aux 2 1 2 900 2100 0 0
save
"""
LOW, CENTRE, HIGH = 1000, 1500, 2000
METRES = 111_319.49  # per degree of latitude: Betaflight's 1.113195 cm per 1e-7 degrees
ORIGIN = (47.0, 8.0)


class Sitl:
    """A process of Betaflight's, and the vehicle that it commands."""

    def __init__(self, program: Path, robot: str = "x500", pace: float = 0.5, heading: float = 0.5) -> None:
        """`pace`: of real time, which Betaflight's clock follows; `heading` (rad): of the nose, from east to north."""
        self.pace = pace
        self.folder = tempfile.TemporaryDirectory(prefix="sitl")
        settings = Path(self.folder.name) / "settings.txt"
        settings.write_text(SETTINGS)
        self.log = (Path(self.folder.name) / "log.txt").open("w+")
        words = ["stdbuf", "-oL", str(program.resolve()), "--config", str(settings)]
        subprocess.run(words, cwd=self.folder.name, stdout=self.log, stderr=self.log, timeout=60)
        self.process = subprocess.Popen(words[:3], cwd=self.folder.name, stdout=self.log, stderr=self.log)
        self.heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.heard.bind(("127.0.0.1", 9001))
        self.heard.settimeout(0.02)
        self.out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.world = World(robot, [(0.0, 0.0)])
        self.world.place(0, quaternion=(math.cos(heading / 2), 0.0, 0.0, math.sin(heading / 2)))
        self.motors = (0.0,) * 4
        self.sticks = [CENTRE, CENTRE, LOW, CENTRE, LOW, LOW, CENTRE, *[LOW] * 9]
        self.due = time.monotonic()
        self.gps = True
        self.rng = np.random.default_rng(0)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.heard.close()
        self.out.close()

    @property
    def said(self) -> str:
        return Path(self.log.name).read_text(errors="replace")

    def tick(self) -> None:
        """DT of the world: what it senses goes out, what the motors are told comes back."""
        (s,) = self.world.sense()
        rotation = np.array(s.rotation).reshape(3, 3)
        grounded = s.position[2] <= 0.0 and max(self.motors) < 0.3
        accel = np.zeros(3) if grounded else np.array(s.acceleration)
        force = rotation.T @ (accel + np.array([0.0, 0.0, GRAVITY])) + self.rng.normal(0.0, 0.05, 3)
        p, q, r = np.array(s.rate) + self.rng.normal(0.0, 0.002, 3)
        w, x, y, z = s.quaternion
        w, x, y, z = -z, -y, x, w  # Gazebo's world is turned by half a turn; and its latitudes are mirrored
        east, north, up = s.position
        latitude = ORIGIN[0] - north / METRES
        longitude = ORIGIN[1] - east / (METRES * math.cos(math.radians(ORIGIN[0])))
        place = (longitude, latitude, up) if self.gps else (999.0, 999.0, up)
        packet = (self.world.time, p, -q, r, *-force, w, x, -y, -z, *s.velocity, *place, 101325.0)
        self.out.sendto(struct.pack("<18d", *packet), ("127.0.0.1", 9003))
        self.out.sendto(struct.pack("<d16H", self.world.time, *self.sticks), ("127.0.0.1", 9004))
        try:
            data = self.heard.recv(256)
            back_right, front_right, back_left, front_left = struct.unpack_from("<4f", data, 4)
            told = (front_right, back_right, back_left, front_left)
            self.motors = tuple(min(max((value - LOW) / (HIGH - LOW), 0.0), 1.0) for value in told)
        except TimeoutError:
            pass
        self.world.step([self.motors])
        # Never in a hurry: by the time between two packets Betaflight says how fast its clock runs until the next one.
        usual, now = DT / self.pace, time.monotonic()
        self.due = max(self.due + usual, now)
        time.sleep(max(self.due - now, 0.7 * usual))

    def run(self, seconds: float, watch: Callable[[], None] = lambda: None) -> None:
        for _ in range(round(seconds / DT)):
            self.tick()
            watch()


def main(program: str, pace: str = "0.5", robot: str = "x500") -> None:
    sitl = Sitl(Path(program), robot, float(pace))
    try:
        fly(sitl)
    finally:
        sitl.close()
        sitl.log.flush()
        print("\n".join(line for line in sitl.said.splitlines() if line.startswith("[quad")))


def fly(sitl: Sitl) -> None:
    """Armed on the ground, up by the throttle's stick, held, forward by a stick; then its GPS is lost."""
    sitl.run(7.0)
    sitl.sticks[4] = HIGH
    sitl.run(0.5)
    print(f"armed, motors at {np.round(sitl.motors, 3)}")
    sitl.sticks[5] = HIGH
    sitl.run(0.2)
    sitl.sticks[2] = CENTRE
    sitl.run(2.0)
    sitl.sticks[2] = LOW
    sitl.run(4.0)
    places = hold(sitl)
    print(f"held for 3 s within {np.ptp(places, axis=0).max():.3f} m, at {np.round(places.mean(axis=0), 3)} m")
    sitl.sticks[1] = HIGH
    sitl.run(1.0)
    sitl.sticks[1] = CENTRE
    sitl.run(3.0)
    (s,) = sitl.world.sense()
    moved = np.array(s.position) - places.mean(axis=0)
    print(
        f"a second of the stick: {np.round(moved, 3)} m, along {math.degrees(math.atan2(moved[1], moved[0])):.0f} deg"
    )
    sitl.gps = False
    for tick in range(round(6.0 / DT)):
        sitl.tick()
        if tick % 25 == 0 and "no position" in sitl.said:
            print(f"without GPS for {tick * DT:.2f} s it hands back")
            break
    (s,) = sitl.world.sense()
    print(f"then it is at {np.round(np.array(s.position) - places.mean(axis=0) - moved, 3)} m from there")


def hold(sitl: Sitl) -> NDArray[np.float64]:
    """Places (ticks, 3), of 3 s."""
    places: list[tuple[float, ...]] = []
    sitl.run(3.0, lambda: places.append(sitl.world.sense()[0].position))
    return np.array(places)


if __name__ == "__main__":
    main(*sys.argv[1:])

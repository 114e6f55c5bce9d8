"""The same cars in MuJoCo: tyres, servo and motor as `dynamics.py` has them, motion and walls of MuJoCo.

To check ours against, and to try policies in a world that they were not trained in. Lidars and cameras see our walls.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.engines.car import Array, Cars, dynamics
from sim.engines.car.grids import FIRST, INDEX_ROWS, PLACE_ROWS, segments
from sim.engines.car.rows import (
    COMMAND_ROWS,
    COS,
    IMPACT,
    INERTIA,
    MASS,
    PARAMETER_ROWS,
    PUSH,
    SIN,
    STATE_ROWS,
    STEERING,
    TOUCHED,
    TURNING,
    VX,
    VY,
)
from sim.engines.car.walls import depth_at
from sim.engines.scene import Double, Scene
from sim.engines.vector.blocks import block, blocks, borrowed, from_lanes, kernel
from sim.engines.vector.simd import ALL, LANES, select
from sim.robots.cars import Car
from sim.scenes.track import Track, area

try:
    import mujoco
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("mujoco is not installed: pip install 'sim2metal[train]'", name="mujoco") from error

STEP = 0.001  # s
THICK = 0.03  # m: the radius of the capsules that walls are made of, which lie behind them
TOUCHING = np.float32(0.003)  # m: contacts are soft, and our grid of distances interpolates
AWAY = "0 0 -100"  # m, where capsules are that a track does not need
ZERO, ONE = np.float32(0.0), np.float32(1.0)
FORCES = 3  # along x and y, around z


@kernel
def force_blocks(state, parameters, command, shape, h, out):
    """What tyres do to all cars now (blocks, FORCES, LANES): N along x and y, N m; servo and motor move on by h s."""
    (shape,) = borrowed((shape,))
    q = np.empty((dynamics.DERIVED_ROWS, LANES), np.float32)
    for place in range(state.shape[0]):
        s, p = block(state, place, STATE_ROWS), block(parameters, place, PARAMETER_ROWS + PLACE_ROWS)
        c, f = block(command, place, COMMAND_ROWS), block(out, place, FORCES)
        dynamics.derived(p, q, shape, ALL)
        cos, sin, none = s[COS, ALL], s[SIN, ALL], ZERO * s[COS, ALL]
        vx, vy, turning = s[VX, ALL], s[VY, ALL], s[TURNING, ALL]
        now = (none, none, none, vx, vy, turning, s[STEERING, ALL], s[PUSH, ALL])
        _, _, _, ahead, left, around, steering, push = dynamics.rates(q, c, shape, ALL, cos, sin, now)
        ahead, left = ahead - turning * vy, left + turning * vx  # the car's axes turn
        f[0, ALL], f[1, ALL] = p[MASS, ALL] * (ahead * cos - left * sin), p[MASS, ALL] * (ahead * sin + left * cos)
        f[2, ALL] = p[INERTIA, ALL] * around
        s[STEERING, ALL] += h * steering
        s[PUSH, ALL] += h * push


@kernel
def touch_blocks(state, parameters, index, cells, shape):
    """Who touches a wall now, and how fast it nears it."""
    cells, shape = borrowed((cells, shape))
    for place in range(state.shape[0]):
        s, p = block(state, place, STATE_ROWS), block(parameters, place, PARAMETER_ROWS + PLACE_ROWS)
        g = block(index, place, INDEX_ROWS)
        for k in range(3):
            at = (k - ONE) * shape.reach
            away, nx, ny = depth_at(s, p, g, cells, at, ALL)
            forward, left = nx * s[COS, ALL] + ny * s[SIN, ALL], ny * s[COS, ALL] - nx * s[SIN, ALL]
            near = away < shape.radius + TOUCHING
            nearing = -(s[VX, ALL] * forward + (s[VY, ALL] + at * s[TURNING, ALL]) * left)
            s[TOUCHED, ALL] = select(near, ONE, s[TOUCHED, ALL])
            s[IMPACT, ALL] = max(s[IMPACT, ALL], select(near, nearing, ZERO))


def race_xml(car: Car, walls: int) -> str:
    """A car that slides along x and y and turns around z, and so many capsules: where walls are says `capsules`."""
    radius, reach, around = 0.5 * car.width, 0.5 * (car.length - car.width), car.yaw_inertia
    touch = f'friction="{car.wall_friction} 0 0" solref="0.004 1" condim="3"'
    # MuJoCo never looks at the turning of a geom that lies as its body does: so they do not.
    wall = f'<geom type="capsule" size="{THICK} 0.1" pos="{AWAY}" zaxis="1 0 0" conaffinity="0" {touch}/>'
    return f"""<mujoco model="race">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{STEP}" gravity="0 0 0" cone="elliptic" impratio="10">
    <flag autoreset="disable" midphase="disable"/>
  </option>
  <worldbody>
    {wall * walls}
    <body name="car">
      <inertial pos="0 0 0" mass="{car.mass}" diaginertia="{around} {around} {around}"/>
      <joint name="x" type="slide" axis="1 0 0"/><joint name="y" type="slide" axis="0 1 0"/>
      <joint name="z" type="hinge" axis="0 0 1"/>
      <geom type="capsule" fromto="{-reach} 0 0 {reach} 0 0" size="{radius}" contype="0" {touch}/></body>
  </worldbody>
  <actuator><motor joint="x"/><motor joint="y"/><motor joint="z"/></actuator>
</mujoco>"""


def capsules(track: Track) -> Double:
    """Of a track's walls, from x, y to x, y (n, 4) m: their middle lines, THICK behind the walls."""
    lines, found = sorted((track.wall(1.0), track.wall(-1.0)), key=lambda line: abs(area(line))), []
    for line, outward in zip(lines, (-1.0, 1.0), strict=True):
        along = np.roll(line, -1, axis=0) - np.roll(line, 1, axis=0)
        along *= outward * np.sign(area(line)) / np.linalg.norm(along, axis=1, keepdims=True)
        behind = line + THICK * np.stack([along[:, 1], -along[:, 0]], axis=1)
        found.append(segments(behind))
    return np.concatenate(found)


class MujocoCars(Cars):
    """As `Cars`, whose arrays hold all that there is: MuJoCo is told anew before every step."""

    def __init__(
        self, car: Car, num: int, dt: float, tracks: Sequence[Track] = (), load_transfer: bool = False
    ) -> None:
        super().__init__(car, num, dt, tracks, load_transfer)
        self._walls = [capsules(track) for track in tracks]
        most = max(map(len, self._walls), default=0)
        model = mujoco.MjModel.from_xml_string(race_xml(car, most))
        self.substeps = max(1, round(dt / STEP))
        self._h = np.float32(dt / self.substeps)
        self.scene = Scene(model, num, dt / self.substeps, threads=1)  # waking others takes longer than a step
        self._built = np.full((num, 3), np.nan)  # of what track, mass and inertia each world's model is
        self._force = np.zeros((blocks(num), FORCES, LANES), np.float32)

    def _build(self) -> None:
        """Give worlds whose track or mass is another one a model of that."""
        index = from_lanes(self._index[:, FIRST : FIRST + 1], self.num)
        wanted = np.concatenate([index, self.read("mass"), self.read("yaw_inertia")], axis=1).astype(float)
        for world in np.flatnonzero((wanted != self._built).any(axis=1)):
            first, mass, inertia = wanted[world]
            track = int(np.searchsorted(self.grids.places[:, FIRST], first))
            self.scene.vary(int(world), functools.partial(self._change, track, mass, inertia))
        self._built = wanted

    def _change(self, track: int, mass: float, inertia: float, model: Any) -> None:
        """Carry a world's track and parameters over to its own copy of MuJoCo's model."""
        car = model.body("car").id
        model.body_mass[car], model.body_inertia[car] = mass, inertia
        if not self._walls:
            return
        walls = self._walls[track]
        count, along = len(walls), walls[:, 2:] - walls[:, :2]
        length = np.linalg.norm(along, axis=1)
        dx, dy = np.sqrt(0.5) * along.T / length
        model.geom_pos[:count] = np.pad(0.5 * (walls[:, :2] + walls[:, 2:]), ((0, 0), (0, 1)))
        model.geom_quat[:count] = np.stack([np.full(count, np.sqrt(0.5)), -dy, dx, 0.0 * dx], axis=1)  # z to along
        model.geom_size[:count, 1] = 0.5 * length
        model.geom_rbound[:count] = model.geom_aabb[:count, 5] = 0.5 * length + THICK

    def _push(self) -> None:
        """Into MuJoCo what our state says."""
        cos, sin = self.read("heading").T
        vx, vy = self.read("velocity").T
        qpos = np.column_stack([self.read("position"), np.arctan2(sin, cos)])
        qvel = np.column_stack([vx * cos - vy * sin, vx * sin + vy * cos, self.read("turning")])
        self.scene.reset(range(self.num), qpos, qvel)

    def _pull(self) -> None:
        """Out of MuJoCo into our state."""
        (x, y, angle), (vx, vy, turning) = self.scene.qpos.T, self.scene.qvel.T
        cos, sin = np.cos(angle), np.sin(angle)
        state = {
            "position": np.stack([x, y], axis=1),
            "heading": np.stack([cos, sin], axis=1),
            "velocity": np.stack([vx * cos + vy * sin, vy * cos - vx * sin], axis=1),
            "turning": turning[:, None],
        }
        self.write(np.arange(self.num), state)

    def advance(self, told: Array) -> None:
        self._build()
        self._push()
        self.write(np.arange(self.num), {name: np.zeros((self.num, 1)) for name in ("touched", "impact")})
        for _ in range(self.substeps):
            if self._walls:  # before they take its speed
                touch_blocks(self._state, self._parameters, self._index, self.grids.cells, self.shape)
            force_blocks(self._state, self._parameters, told, self.shape, self._h, self._force)
            self.scene.step(from_lanes(self._force, self.num))
            self._pull()

    def close(self) -> None:
        """Free threads and contexts."""
        self.scene.close()

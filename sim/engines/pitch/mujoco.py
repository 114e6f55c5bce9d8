"""The same match in MuJoCo: wheels and kickers as `dynamics.py` has them, motion and contacts of MuJoCo.

To check ours against, and to try policies in a world that they were not trained in.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.pitch import Array, Pitch, dynamics
from sim.engines.pitch.rows import ROBOT_ROWS, ROBOTS, TOUCHED
from sim.engines.scene import Double, Scene
from sim.engines.vector.blocks import borrowed, kernel, to_lanes
from sim.engines.vector.simd import ALL, select
from sim.robots.wheeled import Wheeled
from sim.scenes.pitch import Ball, Field, bouncing, pitch_xml, rolling_friction

try:
    import mujoco
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("mujoco is not installed: pip install 'sim2metal[train]'", name="mujoco") from error

STEP = 0.001  # s
IN_MODEL = {"ball_mass", "sliding", "rolling", "wall_bounce", "mass", "bounce"}
FENCES = 3  # the priority of the boards' contacts
TOUCHING = np.float32(0.002)  # m: contacts are soft


@kernel
def drive_blocks(state, parameters, command, robots, shape, h):
    """What wheels and kickers make of all velocities within h seconds, as if there were no contacts."""
    for index in range(state.shape[0]):
        s, p, c = borrowed(state[index]), borrowed(parameters[index]), borrowed(command[index])
        for k in range(robots):
            dynamics.driven(s, p, c, k, shape, h, ALL)
        for k in range(robots):
            dynamics.kicked(s, p, c, k, shape, ALL)


@kernel
def touch_blocks(state, parameters, robots, shape):
    """Who touches the ball now."""
    for index in range(state.shape[0]):
        s, p = borrowed(state[index]), borrowed(parameters[index])
        for k in range(robots):
            at = ROBOTS + ROBOT_ROWS * k
            depth, _, _, _, _ = dynamics.nearest(s, p, at, shape, ALL)
            now = select(depth > -TOUCHING, dynamics.ONE, dynamics.ZERO)
            s[at + TOUCHED, ALL] = max(s[at + TOUCHED, ALL], now)


class MujocoPitch(Pitch):
    """As `Pitch`."""

    def __init__(self, robot: Wheeled, field: Field, ball: Ball, num: int, robots: int, dt: float) -> None:
        super().__init__(robot, field, ball, num, robots, dt)
        model = mujoco.MjModel.from_xml_string(pitch_xml(robot, field, ball, robots, STEP))
        self.scene = Scene(model, num, dt / self.substeps)
        named = [mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, f"robot{k}") for k in range(robots)]
        self._bodies, self._fences = [model.body("ball").id, *named], np.flatnonzero(model.geom_priority == FENCES)
        self._push(np.arange(num))

    def write(self, worlds: NDArray[np.int64], values: Mapping[str, Any]) -> None:
        super().write(worlds, values)
        self._push(worlds)
        if not IN_MODEL.isdisjoint(values):
            read = {name: self.read(name) for name in IN_MODEL}
            for world in worlds:
                own = {name: value[world].reshape(-1) for name, value in read.items()}
                self.scene.vary(int(world), functools.partial(self._change, own))

    def _change(self, values: Mapping[str, Array], model: Any) -> None:
        """Carry a world's parameters over to its own copy of MuJoCo's model."""
        ball = self.ball
        around = np.array([ball.inertia * ball.radius**2, *[0.5 * self.robot.radius**2] * self.robots])
        masses = np.concatenate([values["ball_mass"], values["mass"]])
        model.body_mass[self._bodies] = masses
        model.body_inertia[self._bodies] = (masses * around)[:, None]
        model.geom("ball").friction[[0, 2]] = values["sliding"][0], rolling_friction(ball, float(values["rolling"][0]))
        model.geom_solref[self._fences] = bouncing(float(values["wall_bounce"][0]))
        for k, bounce in enumerate(values["bounce"]):
            model.geom(f"robot{k}").solref[:] = bouncing(float(bounce))

    def _push(self, worlds: NDArray[np.int64]) -> None:
        """Into MuJoCo what our state says of these worlds."""
        count, radius = len(worlds), self.ball.radius
        read = {name: self.read(name)[worlds] for name in ("ball_position", "ball_velocity", "ball_rolling")}
        qpos, qvel = np.zeros((count, self.scene.model.nq)), np.zeros((count, self.scene.model.nv))
        qpos[:, :2], qpos[:, 2], qpos[:, 3] = read["ball_position"], radius, 1.0
        qvel[:, :2] = read["ball_velocity"]
        qvel[:, 3], qvel[:, 4] = -read["ball_rolling"][:, 1] / radius, read["ball_rolling"][:, 0] / radius
        cos, sin = np.moveaxis(self.read("heading")[worlds], -1, 0)
        places, speeds = qpos[:, 7:].reshape(count, -1, 3), qvel[:, 6:].reshape(count, -1, 3)
        places[..., :2], places[..., 2] = self.read("position")[worlds], np.arctan2(sin, cos)
        speeds[..., :2], speeds[..., 2:] = self.read("velocity")[worlds], self.read("turning")[worlds]
        self.scene.reset(worlds.tolist(), qpos, qvel)

    def _motion(self) -> Double:
        """How all robots move (num, robots, 3): along x and y, and around z."""
        return self.scene.qvel[:, 6:].reshape(self.num, self.robots, 3)

    def _pull(self) -> None:
        """Out of MuJoCo into our state."""
        everyone, qpos, qvel = np.arange(self.num), self.scene.qpos, self.scene.qvel
        w, x, y, z = qpos[:, 3:7].T
        a, b, c = qvel[:, 3:6].T  # around the ball's own axes
        around_x = (1 - 2 * (y * y + z * z)) * a + 2 * (x * y - w * z) * b + 2 * (x * z + w * y) * c
        around_y = 2 * (x * y + w * z) * a + (1 - 2 * (x * x + z * z)) * b + 2 * (y * z - w * x) * c
        places, speeds = qpos[:, 7:].reshape(self.num, -1, 3), self._motion()
        over = self.shape.half_length + self.ball.radius
        before, now = self.read("scored"), (qpos[:, :1] > over) * 1.0 - (qpos[:, :1] < -over)
        state = {
            "ball_position": qpos[:, :2],
            "ball_velocity": qvel[:, :2],
            "ball_rolling": self.ball.radius * np.stack([around_y, -around_x], axis=1),
            "scored": np.where(before, before, now),
            "position": places[..., :2],
            "heading": np.stack([np.cos(places[..., 2]), np.sin(places[..., 2])], axis=-1),
            "velocity": speeds[..., :2],
            "turning": speeds[..., 2:],
        }
        Pitch.write(self, everyone, state)

    def step(self, command: Array) -> None:
        self.check(command)
        told = to_lanes(np.asarray(command, np.float32).reshape(self.num, -1))
        Pitch.write(self, np.arange(self.num), {"touched": np.zeros((self.num, self.robots, 1))})
        inertia = self.read("mass") * np.array([1.0, 1.0, 0.5 * self.robot.radius**2])
        for _ in range(self.substeps):
            before, ball = self._motion().copy(), self.read("ball_velocity")
            drive_blocks(self._state, self._parameters, told, self.robots, self.shape, self._h)
            self.scene.qvel[:, :2] += self.read("ball_velocity") - ball
            wanted = np.concatenate([self.read("velocity"), self.read("turning")], axis=2)
            force = inertia * (wanted - before) / self._h
            self.scene.step(force.reshape(self.num, -1))
            self._pull()
            touch_blocks(self._state, self._parameters, self.robots, self.shape)

    def close(self) -> None:
        """Free threads and contexts."""
        self.scene.close()
